#include "spillway/device/cuda_driver.h"

#include <algorithm>
#include <cctype>

#include "spillway/base/error.h"
#include "spillway/sys/library.h"
#include "spillway/sys/pci.h"

namespace spillway::device {
namespace {

CudaCalls load(const sys::Library& library) {
  CudaCalls out;
  const auto find = [&](auto& call, const char* name) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(library.symbol(name));
  };
  find(out.init, "cuInit");
  find(out.driver_version, "cuDriverGetVersion");
  find(out.error_name, "cuGetErrorName");
  find(out.error_string, "cuGetErrorString");
  find(out.device_count, "cuDeviceGetCount");
  find(out.device_get, "cuDeviceGet");
  find(out.device_name, "cuDeviceGetName");
  find(out.device_memory, "cuDeviceTotalMem_v2");
  find(out.device_bus, "cuDeviceGetPCIBusId");
  find(out.retain_context, "cuDevicePrimaryCtxRetain");
  find(out.release_context, "cuDevicePrimaryCtxRelease_v2");
  find(out.push_context, "cuCtxPushCurrent_v2");
  find(out.pop_context, "cuCtxPopCurrent_v2");
  find(out.memory_info, "cuMemGetInfo_v2");
  find(out.allocate, "cuMemAlloc_v2");
  find(out.free, "cuMemFree_v2");
  find(out.allocate_host, "cuMemAllocHost_v2");
  find(out.free_host, "cuMemFreeHost");
  find(out.register_host, "cuMemHostRegister_v2");
  find(out.unregister_host, "cuMemHostUnregister");
  find(out.create_stream, "cuStreamCreate");
  find(out.destroy_stream, "cuStreamDestroy_v2");
  find(out.synchronise_stream, "cuStreamSynchronize");
  find(out.wait_event, "cuStreamWaitEvent");
  find(out.create_event, "cuEventCreate");
  find(out.destroy_event, "cuEventDestroy_v2");
  find(out.record_event, "cuEventRecord");
  find(out.query_event, "cuEventQuery");
  find(out.synchronise_event, "cuEventSynchronize");
  find(out.elapsed, "cuEventElapsedTime");
  find(out.copy_to_device, "cuMemcpyHtoDAsync_v2");
  find(out.copy_from_device, "cuMemcpyDtoHAsync_v2");
  find(out.load_module, "cuModuleLoadDataEx");
  find(out.unload_module, "cuModuleUnload");
  find(out.get_function, "cuModuleGetFunction");
  find(out.launch, "cuLaunchKernel");
  find(out.fill, "cuMemsetD8Async");
  return out;
}

CudaCalls load(const std::string& name) {
  try {
    return load(sys::Library(name));
  } catch (const Error& error) {
    throw Error(ErrorCode::unsupported, text("no NVIDIA driver: ", error.what(),
                                             ". Install it (or give the container its GPU), or use --device cpu"));
  }
}

}  // namespace

CudaDriver::CudaDriver(const std::string& library) : calls_(load(library)) {
  const auto started = calls_.init(0);
  if (started == kCudaSuccess) check(calls_.device_count(&devices_), "cuDeviceGetCount");
  if (started == kCudaNoDevice || (started == kCudaSuccess && devices_ == 0)) {
    throw Error(ErrorCode::unsupported,
                "the NVIDIA driver is there, but no GPU that this process may use (CUDA_VISIBLE_DEVICES can hide "
                "them); use --device cpu");
  }
  if (started != kCudaSuccess) {
    throw Error(ErrorCode::unsupported,
                text("the NVIDIA driver does not start: ", words(started), "; nvidia-smi may say more"));
  }
  check(calls_.driver_version(&version_), "cuDriverGetVersion");
}

std::string CudaDriver::words(int result) const {
  const char* name = nullptr;
  const char* meaning = nullptr;
  if (calls_.error_name(result, &name) != kCudaSuccess || name == nullptr) return text("CUDA error ", result);
  if (calls_.error_string(result, &meaning) != kCudaSuccess || meaning == nullptr) return name;
  return text(name, ", ", meaning);
}

void CudaDriver::check(int result, const char* call) const {
  if (result != kCudaSuccess) throw Error(ErrorCode::io, text("the GPU failed in ", call, ": ", words(result)));
}

std::vector<GpuFacts> gpus(const CudaDriver& driver, const std::string& root) {
  const auto& calls = driver.calls();
  std::vector<GpuFacts> out;
  for (int index = 0; index < driver.devices(); ++index) {
    GpuFacts facts{.index = index, .name = {}, .bus = {}, .node = {}};
    int device = 0;
    driver.check(calls.device_get(&device, index), "cuDeviceGet");
    char words[256] = {};
    driver.check(calls.device_name(words, sizeof words, device), "cuDeviceGetName");
    facts.name = words;
    std::size_t bytes = 0;
    driver.check(calls.device_memory(&bytes, device), "cuDeviceTotalMem");
    facts.memory = bytes;
    char bus[32] = {};
    driver.check(calls.device_bus(bus, sizeof bus, device), "cuDeviceGetPCIBusId");
    facts.bus = bus;
    std::ranges::transform(facts.bus, facts.bus.begin(), [](unsigned char c) { return std::tolower(c); });
    facts.node = sys::pci_node(facts.bus, root);
    out.push_back(std::move(facts));
  }
  return out;
}

}  // namespace spillway::device
