#include "spillway/sys/direct_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "spillway/sys/errno.h"
#include "spillway/sys/mapping.h"

namespace spillway::sys {
namespace {

constexpr Bytes kSmallest = 512;
constexpr Bytes kLargest = 64 * KiB;

/// EINVAL is the answer to a wrong alignment; anything else is a failure of another kind.
bool can_read(const File& file, std::byte* memory, Bytes bytes, Bytes offset) {
  ssize_t moved = 0;
  do {
    moved = ::pread(file.fd(), memory, bytes, static_cast<off_t>(offset));
  } while (moved < 0 && errno == EINTR);
  if (moved < 0 && errno != EINVAL) throw_errno(errno, "read", file.path());
  return moved >= 0;
}

}  // namespace

std::optional<DirectAlignment> reported_alignment(const File& file) noexcept {
#ifdef STATX_DIOALIGN
  struct statx status {};
  if (::statx(file.fd(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) return std::nullopt;
  if ((status.stx_mask & STATX_DIOALIGN) == 0 || status.stx_dio_offset_align == 0) return std::nullopt;
  return DirectAlignment{status.stx_dio_mem_align, status.stx_dio_offset_align};
#else
  static_cast<void>(file);
  return std::nullopt;
#endif
}

std::optional<DirectAlignment> tried_alignment(const File& file) {
  const Mapping memory(2 * kLargest);
  std::byte* const data = memory.span().data();
  Bytes offset = kSmallest;
  while (offset <= kLargest && !can_read(file, data, offset, offset)) offset *= 2;
  if (offset > kLargest) return std::nullopt;
  Bytes address = kSmallest;
  while (address < kLargest && !can_read(file, data + address, offset, 0)) address *= 2;
  return DirectAlignment{address, offset};
}

Bytes preferred_block(const File& file) {
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) throw_errno(errno, "examine", file.path());
  return static_cast<Bytes>(status.st_blksize);
}

}  // namespace spillway::sys
