// The kernels, loaded by the driver: as machine code, else as PTX, which the driver compiles.
#pragma once

#include <string>
#include <unordered_map>

#include "spillway/device/cuda_driver.h"
#include "spillway/device/cuda_launch.h"

namespace spillway::device {

/// For one context, which is current while this is made and while it ends. `driver` must outlive it.
class CudaModule {
 public:
  /// A driver that takes neither form is no error: refusal() says so.
  CudaModule(const CudaDriver& driver, const CudaKernels& kernels);
  ~CudaModule();
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;

  /// Why there are no kernels, both errors of the driver among it; empty: there are.
  [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }
  /// Which form was taken, and why not the first.
  [[nodiscard]] const std::string& form() const noexcept { return form_; }
  /// One of kernel_names().
  [[nodiscard]] CUfunc_st* kernel(const std::string& name) const { return kernels_.at(name); }

 private:
  /// Empty when the driver has taken it, else its error.
  [[nodiscard]] std::string load(std::span<const std::byte> image);

  const CudaDriver& driver_;
  CUmod_st* module_ = nullptr;
  std::unordered_map<std::string, CUfunc_st*> kernels_;
  std::string refusal_;
  std::string form_;
};

}  // namespace spillway::device
