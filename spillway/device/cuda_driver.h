// The part of the CUDA driver interface that is used here, found when the program runs.
//
// Declarations are our own, so that no header of CUDA is needed to build; tests/device compares them with cuda.h where
// that is installed. Names with _v2 are the ones that the header's macros stand for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"

// These are declared as cuda.h declares them.
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

namespace spillway::device {

/// The driver's functions. Results are of the enumeration CUresult, whose values are ints.
struct CudaCalls {
  int (*init)(unsigned flags) = nullptr;
  int (*driver_version)(int* version) = nullptr;
  int (*error_name)(int error, const char** name) = nullptr;
  int (*error_string)(int error, const char** words) = nullptr;
  int (*device_count)(int* count) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*device_name)(char* name, int length, int device) = nullptr;
  int (*device_memory)(std::size_t* bytes, int device) = nullptr;
  int (*device_bus)(char* bus, int length, int device) = nullptr;
  int (*retain_context)(CUctx_st** context, int device) = nullptr;
  int (*release_context)(int device) = nullptr;
  int (*push_context)(CUctx_st* context) = nullptr;
  int (*pop_context)(CUctx_st** context) = nullptr;
  int (*memory_info)(std::size_t* free, std::size_t* total) = nullptr;
  int (*allocate)(unsigned long long* address, std::size_t bytes) = nullptr;
  int (*free)(unsigned long long address) = nullptr;
  int (*allocate_host)(void** address, std::size_t bytes) = nullptr;
  int (*free_host)(void* address) = nullptr;
  int (*register_host)(void* address, std::size_t bytes, unsigned flags) = nullptr;
  int (*unregister_host)(void* address) = nullptr;
  int (*create_stream)(CUstream_st** stream, unsigned flags) = nullptr;
  int (*destroy_stream)(CUstream_st* stream) = nullptr;
  int (*synchronise_stream)(CUstream_st* stream) = nullptr;
  int (*wait_event)(CUstream_st* stream, CUevent_st* event, unsigned flags) = nullptr;
  int (*create_event)(CUevent_st** event, unsigned flags) = nullptr;
  int (*destroy_event)(CUevent_st* event) = nullptr;
  int (*record_event)(CUevent_st* event, CUstream_st* stream) = nullptr;
  int (*query_event)(CUevent_st* event) = nullptr;
  int (*synchronise_event)(CUevent_st* event) = nullptr;
  int (*elapsed)(float* milliseconds, CUevent_st* first, CUevent_st* last) = nullptr;
  int (*copy_to_device)(unsigned long long to, const void* from, std::size_t bytes, CUstream_st* stream) = nullptr;
  int (*copy_from_device)(void* to, unsigned long long from, std::size_t bytes, CUstream_st* stream) = nullptr;
  int (*load_module)(CUmod_st** module, const void* image, unsigned count, int* options, void** values) = nullptr;
  int (*unload_module)(CUmod_st* module) = nullptr;
  int (*get_function)(CUfunc_st** function, CUmod_st* module, const char* name) = nullptr;
  int (*launch)(CUfunc_st* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream_st* stream, void** arguments,
                void** extra) = nullptr;
  int (*fill)(unsigned long long to, unsigned char value, std::size_t bytes, CUstream_st* stream) = nullptr;
};

// Results and flags that matter here (cuda.h).
inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaOutOfMemory = 2;
inline constexpr int kCudaNoDevice = 100;
inline constexpr int kCudaNotReady = 600;
inline constexpr unsigned kCudaRegisterPortable = 1;   ///< for every context
inline constexpr unsigned kCudaStreamNonBlocking = 1;  ///< does not wait for the default stream
inline constexpr unsigned kCudaEventBlocking = 1;      ///< who waits sleeps
inline constexpr unsigned kCudaEventNoTiming = 2;
inline constexpr int kCudaJitErrorLog = 5;       ///< option of load_module; its value is a buffer
inline constexpr int kCudaJitErrorLogBytes = 6;  ///< and this one's the bytes of that

inline constexpr const char* kCudaLibrary = "libcuda.so.1";

/// The driver, loaded and initialised.
class CudaDriver {
 public:
  /// Throws Error(unsupported) that says what is missing: the driver, one of its functions, or a GPU.
  explicit CudaDriver(const std::string& library = kCudaLibrary);

  [[nodiscard]] const CudaCalls& calls() const noexcept { return calls_; }
  [[nodiscard]] int devices() const noexcept { return devices_; }
  [[nodiscard]] int version() const noexcept { return version_; }  ///< 13000 is 13.0
  /// "CUDA_ERROR_INVALID_VALUE, invalid argument".
  [[nodiscard]] std::string words(int result) const;
  /// Throws Error(io) naming the call when it did not succeed.
  void check(int result, const char* call) const;

 private:
  CudaCalls calls_;
  int devices_ = 0;
  int version_ = 0;
};

/// What is known of a GPU without using it.
struct GpuFacts {
  int index = 0;
  std::string name;
  Bytes memory = 0;
  std::string bus;          ///< PCI address as sysfs writes it, "0000:65:00.0"
  std::optional<int> node;  ///< NUMA node that it is nearest to; none: the kernel does not say
};

/// `root` is "" but for tests.
[[nodiscard]] std::vector<GpuFacts> gpus(const CudaDriver& driver, const std::string& root = "");

}  // namespace spillway::device
