// A piece of work as a launch of a kernel of cuda_kernels.cu.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "spillway/device/cuda_threads.h"
#include "spillway/device/work.h"

namespace spillway::device {

/// Every kernel takes one struct, by value.
struct Launch {
  std::string kernel;  ///< "spillway_sum_bf16"; empty: there is nothing to do
  unsigned blocks = 0;
  static constexpr unsigned kThreads = threads::kBlock;
  alignas(16) std::array<std::byte, 256> arguments{};
};

[[nodiscard]] Launch launch_of(const Work& work);

/// Names of all kernels.
[[nodiscard]] std::span<const std::string> kernel_names();

/// The kernels that were built into the library, for cuModuleLoadData; empty when there was no compiler for them.
[[nodiscard]] std::span<const std::byte> cuda_image() noexcept;

}  // namespace spillway::device
