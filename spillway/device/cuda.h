// An NVIDIA GPU, through the driver interface and the process's primary context, which PyTorch uses, too.
#pragma once

#include <string>

#include "spillway/device/cuda_driver.h"
#include "spillway/device/cuda_launch.h"
#include "spillway/device/device.h"

namespace spillway::device {

struct CudaOptions {
  int index = 0;  ///< among the GPUs that this process sees
  std::string library = kCudaLibrary;
  CudaKernels kernels = cuda_kernels();  ///< empty: none were built, and run() is refused
  Bytes piece = kRegisteredPiece;        ///< of host memory that is registered at once
};

/// Throws Error(unsupported) without a driver or a GPU, Error(bad_input) for an index that is not there.
[[nodiscard]] std::unique_ptr<Device> make_cuda(const CudaOptions& options);

}  // namespace spillway::device
