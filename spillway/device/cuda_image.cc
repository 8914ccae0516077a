// The kernels as nvcc made them, bytes of this library; nothing where nvcc was not there (cmake/SpillwayCuda.cmake).
#include "spillway/device/cuda_launch.h"

#ifdef SPILLWAY_CUDA_FATBIN
asm(".pushsection .rodata\n"
    ".balign 64\n"
    "spillway_cuda_image_begin:\n"
    ".incbin \"" SPILLWAY_CUDA_FATBIN
    "\"\n"
    "spillway_cuda_image_end:\n"
    ".balign 8\n"
    ".popsection\n");
extern "C" {
[[gnu::visibility("hidden")]] extern const std::byte spillway_cuda_image_begin[];
[[gnu::visibility("hidden")]] extern const std::byte spillway_cuda_image_end[];
}
#endif

namespace spillway::device {

std::span<const std::byte> cuda_image() noexcept {
#ifdef SPILLWAY_CUDA_FATBIN
  return {spillway_cuda_image_begin, spillway_cuda_image_end};
#else
  return {};
#endif
}

}  // namespace spillway::device
