// Threads near a memory node.
#pragma once

namespace spillway::memory {

/// Keeps the calling thread on the processors nearest to that node, of those that it may run on; where there are none,
/// or the kernel refuses, it stays as it was and the answer is false.
bool stay_near(int node) noexcept;

}  // namespace spillway::memory
