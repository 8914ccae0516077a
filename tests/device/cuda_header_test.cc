// Our declarations of the driver against cuda.h, where that is installed: a difference does not compile.
#include <gtest/gtest.h>

#include "spillway/device/cuda_driver.h"
#include "tests/needs.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

#include <type_traits>

namespace spillway::device {
namespace {

/// The same arguments; the header's result is an enumeration of ints, and so are the types that some calls take.
template <class Ours, class Theirs>
constexpr bool same = false;
template <class... Ours, class... Theirs>
constexpr bool same<int (*)(Ours...), CUresult(Theirs...)> =
    (... && (std::is_same_v<Ours, Theirs> || (std::is_same_v<Ours, int> && std::is_same_v<Theirs, CUresult>) ||
             (std::is_same_v<Ours, int*> && std::is_same_v<Theirs, CUjit_option*>)));

static_assert(sizeof(CUresult) == sizeof(int) && sizeof(CUjit_option) == sizeof(int) &&
              sizeof(CUdeviceptr) == sizeof(unsigned long long));
#define SAME(call, name) static_assert(same<decltype(CudaCalls::call), decltype(name)>, #name)
SAME(init, ::cuInit);
SAME(driver_version, ::cuDriverGetVersion);
SAME(error_name, ::cuGetErrorName);
SAME(error_string, ::cuGetErrorString);
SAME(device_count, ::cuDeviceGetCount);
SAME(device_get, ::cuDeviceGet);
SAME(device_name, ::cuDeviceGetName);
SAME(device_memory, ::cuDeviceTotalMem);
SAME(device_bus, ::cuDeviceGetPCIBusId);
SAME(retain_context, ::cuDevicePrimaryCtxRetain);
SAME(release_context, ::cuDevicePrimaryCtxRelease);
SAME(push_context, ::cuCtxPushCurrent);
SAME(pop_context, ::cuCtxPopCurrent);
SAME(memory_info, ::cuMemGetInfo);
SAME(allocate, ::cuMemAlloc);
SAME(free, ::cuMemFree);
SAME(allocate_host, ::cuMemAllocHost);
SAME(free_host, ::cuMemFreeHost);
SAME(register_host, ::cuMemHostRegister);
SAME(unregister_host, ::cuMemHostUnregister);
SAME(create_stream, ::cuStreamCreate);
SAME(destroy_stream, ::cuStreamDestroy);
SAME(synchronise_stream, ::cuStreamSynchronize);
SAME(wait_event, ::cuStreamWaitEvent);
SAME(create_event, ::cuEventCreate);
SAME(destroy_event, ::cuEventDestroy);
SAME(record_event, ::cuEventRecord);
SAME(query_event, ::cuEventQuery);
SAME(synchronise_event, ::cuEventSynchronize);
SAME(elapsed, ::cuEventElapsedTime);
SAME(copy_to_device, ::cuMemcpyHtoDAsync);
SAME(copy_from_device, ::cuMemcpyDtoHAsync);
SAME(load_module, ::cuModuleLoadDataEx);
SAME(unload_module, ::cuModuleUnload);
SAME(get_function, ::cuModuleGetFunction);
SAME(launch, ::cuLaunchKernel);
SAME(fill, ::cuMemsetD8Async);

static_assert(kCudaSuccess == CUDA_SUCCESS && kCudaOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kCudaNoDevice == CUDA_ERROR_NO_DEVICE && kCudaNotReady == CUDA_ERROR_NOT_READY);
static_assert(kCudaRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kCudaStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kCudaEventBlocking == CU_EVENT_BLOCKING_SYNC && kCudaEventNoTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kCudaJitErrorLog == CU_JIT_ERROR_LOG_BUFFER &&
              kCudaJitErrorLogBytes == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);

#define WORDS_OF(name) #name
#define WORDS(name) WORDS_OF(name)

TEST(CudaHeader, MacrosStandForTheNamesThatAreLookedUp) {
  EXPECT_STREQ(WORDS(cuDeviceTotalMem), "cuDeviceTotalMem_v2");
  EXPECT_STREQ(WORDS(cuDevicePrimaryCtxRelease), "cuDevicePrimaryCtxRelease_v2");
  EXPECT_STREQ(WORDS(cuCtxPushCurrent), "cuCtxPushCurrent_v2");
  EXPECT_STREQ(WORDS(cuCtxPopCurrent), "cuCtxPopCurrent_v2");
  EXPECT_STREQ(WORDS(cuMemGetInfo), "cuMemGetInfo_v2");
  EXPECT_STREQ(WORDS(cuMemAlloc), "cuMemAlloc_v2");
  EXPECT_STREQ(WORDS(cuMemFree), "cuMemFree_v2");
  EXPECT_STREQ(WORDS(cuMemAllocHost), "cuMemAllocHost_v2");
  EXPECT_STREQ(WORDS(cuMemHostRegister), "cuMemHostRegister_v2");
  EXPECT_STREQ(WORDS(cuStreamDestroy), "cuStreamDestroy_v2");
  EXPECT_STREQ(WORDS(cuEventDestroy), "cuEventDestroy_v2");
  EXPECT_STREQ(WORDS(cuMemcpyHtoDAsync), "cuMemcpyHtoDAsync_v2");
  EXPECT_STREQ(WORDS(cuMemcpyDtoHAsync), "cuMemcpyDtoHAsync_v2");
  EXPECT_STREQ(WORDS(cuMemsetD8Async), "cuMemsetD8Async");
  EXPECT_STREQ(WORDS(cuStreamWaitEvent), "cuStreamWaitEvent");
  EXPECT_STREQ(WORDS(cuEventRecord), "cuEventRecord");
}

}  // namespace
}  // namespace spillway::device
#else
TEST(CudaHeader, IsNotInstalled) {
  SPILLWAY_NEEDS(cuda_header, false,
                 "cuda.h is not installed: the declarations of cuda_driver.h are not compared with it");
}
#endif
