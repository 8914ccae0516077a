// The kernels as nvcc made them, bytes of this library, or why there are none (cmake/SpillwayCuda.cmake).
#include "spillway/device/cuda_launch.h"

#define FILE_AS(name, extension)               \
  "spillway_cuda_" name                        \
  "_begin:\n"                                  \
  ".incbin \"" SPILLWAY_CUDA_KERNELS extension \
  "\"\n"                                       \
  "spillway_cuda_" name "_end:\n"

asm(".pushsection .rodata\n"
    ".balign 64\n" FILE_AS("machine_code", ".fatbin")
    ".balign 8\n" FILE_AS("ptx", ".ptx")
    ".byte 0\n" FILE_AS("missing", ".missing")
    ".balign 8\n"
    ".popsection\n");

#define BYTES_OF(name)                                                                 \
  [[gnu::visibility("hidden")]] extern const std::byte spillway_cuda_##name##_begin[]; \
  [[gnu::visibility("hidden")]] extern const std::byte spillway_cuda_##name##_end[];

extern "C" {
BYTES_OF(machine_code)
BYTES_OF(ptx)
BYTES_OF(missing)
}

namespace spillway::device {

CudaKernels cuda_kernels() noexcept {
  const std::span<const std::byte> ptx{spillway_cuda_ptx_begin, spillway_cuda_ptx_end + 1};  // with the 0 behind it
  return {.machine_code = {spillway_cuda_machine_code_begin, spillway_cuda_machine_code_end},
          .ptx = ptx.size() > 1 ? ptx : std::span<const std::byte>{},
          .missing = {reinterpret_cast<const char*>(spillway_cuda_missing_begin),
                      static_cast<std::size_t>(spillway_cuda_missing_end - spillway_cuda_missing_begin)}};
}

}  // namespace spillway::device
