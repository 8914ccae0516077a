// Where the pages of a range of memory lie, and where they shall: the kernel's calls, without a library between.
//
// Pages are of 4 KiB here whatever lies behind them. Nothing is inferred from a policy that was set: only what
// `page_nodes` says is where memory is.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "spillway/sys/mapping.h"

namespace spillway::sys {

/// What the kernel does for pages that come to be. A page that is there stays where it is.
enum class MemoryPolicy {
  standard,    ///< the process's own; the nodes are not looked at
  preferred,   ///< the node, or another one when it is full. The only one for a node that may turn out to be full
  bind,        ///< the nodes and no others: when they are full, the kernel KILLS the process. Never use it on memory
               ///< that has not been looked up as free
  any_of,      ///< preferably one of the nodes, the nearest first
  interleave,  ///< page by page in turn; a full node is passed over
  weighted,    ///< as many pages in turn as weighted_interleave() says; a full node is passed over
};

/// Why the calls below fail here, for a person: "mbind: Operation not permitted (EPERM); ..."; empty where they work.
/// Containers refuse them. Tried once a process.
[[nodiscard]] const std::string& numa_refusal();
/// Tries the calls now, and answers as numa_refusal() does.
[[nodiscard]] std::string try_numa_calls();

/// Sets the policy of the pages of the range, which begins and ends on pages. Returns 0, or the errno.
[[nodiscard]] int set_memory_policy(std::span<std::byte> range, MemoryPolicy policy,
                                    std::span<const int> nodes) noexcept;
/// Sets the policy of pages that the calling thread is the first to touch, where their range has no policy of its own.
/// Returns 0, or the errno.
[[nodiscard]] int set_thread_memory_policy(MemoryPolicy policy, std::span<const int> nodes) noexcept;
/// Nodes that whoever started the process bound it to (numactl --membind); empty: it is not bound.
[[nodiscard]] std::vector<int> bound_nodes() noexcept;

/// A page that is not in memory: never touched, or swapped out.
inline constexpr int kAbsent = -1;

/// The node of each page of the range from its first to its last byte, in order (out.size() of them): kAbsent where
/// there is none. 0, or the errno.
[[nodiscard]] int page_nodes(std::span<const std::byte> range, std::span<int> out) noexcept;
/// How many `page_nodes` gives.
[[nodiscard]] std::size_t page_count(std::span<const std::byte> range) noexcept;

/// Moves page number i of the range to nodes[i]; kAbsent leaves it where it is. What is there stays readable and
/// writable all the while. A page that cannot be moved (pinned for a device; no memory on that node) stays: ask
/// `page_nodes`. 0, or the errno of a call that was refused as a whole.
[[nodiscard]] int move_pages(std::span<std::byte> range, std::span<const int> nodes) noexcept;

/// The kernel's weights of node 0, 1, ... for MemoryPolicy::weighted; empty where it has none (before Linux 6.9).
[[nodiscard]] std::vector<unsigned> weighted_interleave(const std::string& root = "");

/// CPUs that the calling thread may run on.
[[nodiscard]] std::vector<unsigned> thread_affinity();
/// Keeps the calling thread on those of `cpus` that it may run on; where there are none, or the kernel refuses, it
/// stays as it was and the answer is false.
bool set_thread_affinity(std::span<const unsigned> cpus);

}  // namespace spillway::sys
