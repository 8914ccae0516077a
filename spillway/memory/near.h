// Where threads run: near a NUMA node, and after others.
#pragma once

namespace spillway::memory {

/// Keeps the calling thread on the CPUs nearest to that node, of those that it may run on; where there are none,
/// or the kernel refuses, it stays as it was and the answer is false.
bool stay_near(int node) noexcept;

/// Keeps the calling thread off the physical core of a CPU; where it may run nowhere else, or the kernel refuses, it
/// stays as it was and the answer is false. `cpu`: as own_cpu() gives it.
bool stay_off_core(int cpu) noexcept;
/// The CPU that the calling thread runs on now; -1: unknown.
[[nodiscard]] int own_cpu() noexcept;

/// Who gets a CPU first: threads of usual priority, updates beside a device, background refits.
inline constexpr int kUpdateNice = 5, kRefitNice = 10;

/// The calling thread gets a CPU after all threads of higher priority, as far as these want one.
void give_way(int nice) noexcept;

}  // namespace spillway::memory
