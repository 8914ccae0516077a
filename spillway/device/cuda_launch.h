// A piece of work as a launch of a kernel of cuda_kernels.cu.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "spillway/device/cuda_threads.h"
#include "spillway/device/work.h"

namespace spillway::device {

/// Every kernel takes one struct, by value.
struct Launch {
  std::string kernel;  ///< "spillway_sum_bf16"; empty: there is nothing to do
  unsigned blocks = 0;
  static constexpr unsigned kThreads = threads::kBlock;
  alignas(16) std::array<std::byte, 272> arguments{};
};

[[nodiscard]] Launch launch_of(const Work& work);

/// Names of all kernels.
[[nodiscard]] std::span<const std::string> kernel_names();

/// The kernels in both forms that a driver may take; either may be empty.
struct CudaKernels {
  std::span<const std::byte>
      machine_code;                ///< for some generations of GPUs, in one file of nvcc's; needs a driver as new
  std::span<const std::byte> ptx;  ///< text that any driver since CUDA 11.0 compiles for its GPU; ends with a 0
  std::string_view missing;        ///< why there are none, as words after "because"

  [[nodiscard]] bool empty() const noexcept { return machine_code.empty() && ptx.empty(); }
};

/// Those that were built into the library.
[[nodiscard]] CudaKernels cuda_kernels() noexcept;

}  // namespace spillway::device
