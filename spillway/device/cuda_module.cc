#include "spillway/device/cuda_module.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "spillway/base/error.h"

namespace spillway::device {
namespace {

/// What the driver's compiler says, in one line.
std::string one_line(std::string_view log) {
  std::string out(log.substr(0, log.find('\0')));
  std::ranges::replace(out, '\n', ' ');
  out.erase(out.find_last_not_of(' ') + 1);
  return out;
}

std::string cuda_version(int version) {
  return text(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

CudaModule::CudaModule(const CudaDriver& driver, const CudaKernels& kernels) : driver_(driver) {
  if (kernels.empty()) {
    refusal_ = text("this build of Spillway has no kernels for a GPU, because ", kernels.missing,
                    "; build it where CUDA's compiler (nvcc) works, or use --device cpu");
    return;
  }
  const auto as_machine_code = load(kernels.machine_code);
  if (as_machine_code.empty()) {
    form_ = "machine code";
  } else if (const auto as_ptx = load(kernels.ptx); as_ptx.empty()) {
    form_ = text("PTX that the driver has compiled, which refuses the machine code: ", as_machine_code);
  } else {
    refusal_ =
        text("the driver (for CUDA ", cuda_version(driver.version()),
             ") refuses the kernels of this build; as machine code: ", as_machine_code, "; as PTX: ", as_ptx,
             ". They need a driver for CUDA 11.0 or newer and a GPU of compute capability 8.0 or higher; else use "
             "--device cpu");
    return;
  }
  for (const auto& name : kernel_names()) {
    driver_.check(driver_.calls().get_function(&kernels_[name], module_, name.c_str()), "cuModuleGetFunction");
  }
}

CudaModule::~CudaModule() {
  if (module_ != nullptr) static_cast<void>(driver_.calls().unload_module(module_));
}

std::string CudaModule::load(std::span<const std::byte> image) {
  if (image.empty()) return "this build has none";
  std::array<char, 1024> log{};
  std::array<int, 2> options{kCudaJitErrorLog, kCudaJitErrorLogBytes};
  std::array<void*, 2> values{log.data(), reinterpret_cast<void*>(log.size() - 1)};
  const auto result =
      driver_.calls().load_module(&module_, image.data(), options.size(), options.data(), values.data());
  if (result == kCudaSuccess) return {};
  module_ = nullptr;
  const auto said = one_line({log.data(), log.size()});
  return text(driver_.words(result), said.empty() ? "" : text(" (", said, ")"));
}

}  // namespace spillway::device
