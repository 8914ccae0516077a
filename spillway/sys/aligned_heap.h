// Aligned memory of the heap whose place serves again when it is freed, for libraries that allocate by
// posix_memalign().
//
// glibc (2.36; from 2.38 on less) asks its heap for the size, the alignment and 32 bytes, and gives what is too much
// back to small requests. When the block is freed, its hole is too small for the next one of the same size. PyTorch has
// every tensor from posix_memalign(): where layers keep what autograd saves, the heap grew by a quarter more than that.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace spillway::sys {

inline constexpr std::size_t kAlignment = 64;  ///< bytes; that of PyTorch's and oneDNN's memory

/// As posix_memalign(): 0, or why there is no memory; free() takes it back. Blocks of 4 KiB and more that are to be
/// aligned to kAlignment take whole multiples of it in glibc's heap, so that what follows one is aligned as well, and
/// a hole is used by the next of its size.
[[nodiscard]] int aligned(void** block, std::size_t alignment, std::size_t size) noexcept;

/// Has the loaded libraries of these file names, such as "libc10.so", call aligned() where they call posix_memalign(),
/// for the rest of the process: their tables of addresses (of ELF: DT_JMPREL, DT_RELA) are changed in memory. Returns
/// how many entries name it now; 0 where no such library is loaded, or the system links in another way.
std::size_t redirect_posix_memalign(std::span<const std::string> libraries) noexcept;

}  // namespace spillway::sys
