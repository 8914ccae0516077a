// Where threads run: near a NUMA node, and after others.
#pragma once

namespace spillway::memory {

/// Keeps the calling thread on the CPUs nearest to that node, of those that it may run on; where there are none,
/// or the kernel refuses, it stays as it was and the answer is false.
bool stay_near(int node) noexcept;

/// The calling thread gets a CPU after all threads of usual priority, as far as these want one.
void give_way() noexcept;

}  // namespace spillway::memory
