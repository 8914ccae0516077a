#include "spillway/sys/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "spillway/base/error.h"
#include "spillway/sys/errno.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace spillway::sys {
namespace {

constexpr Bytes kPage = 4 * KiB;

void trim(std::byte* begin, const std::byte* end) noexcept {
  if (begin < end) ::munmap(begin, static_cast<std::size_t>(end - begin));
}

/// For kernels before 5.14: a write to each page that leaves its contents alone.
void touch_pages(std::span<std::byte> range) noexcept {
  for (std::size_t at = 0; at < range.size(); at += kPage) {
    volatile std::byte* byte = range.data() + at;
    *byte = *byte;
  }
}

}  // namespace

std::byte* map_memory(Bytes bytes, Bytes alignment) noexcept {
  const Bytes length = round_up(bytes, kPage);
  const Bytes slack = alignment > kPage ? alignment : 0;
  if (length < bytes || length + slack < length) {
    errno = ENOMEM;
    return nullptr;
  }
  void* raw = ::mmap(nullptr, length + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(raw);
  const auto address = reinterpret_cast<std::uintptr_t>(raw);
  auto* data = begin + (round_up(address, alignment) - address);
  trim(begin, data);
  trim(data + length, begin + length + slack);
  return data;
}

void unmap_memory(std::byte* data, Bytes bytes) noexcept {
  if (data != nullptr) ::munmap(data, round_up(bytes, kPage));
}

bool advise_huge_pages(std::span<std::byte> range) noexcept {
  return ::madvise(range.data(), range.size(), MADV_HUGEPAGE) == 0;
}

bool populate(std::span<std::byte> range) noexcept {
  if (range.empty()) return true;
  int result = 0;
  do {
    result = ::madvise(range.data(), range.size(), MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result != 0 && errno == EINVAL) {
    touch_pages(range);
    return true;
  }
  return result == 0;
}

Mapping::Mapping(Bytes bytes) : data_(map_memory(bytes, kPage)), bytes_(bytes) {
  if (data_ == nullptr) {
    const int failure = errno;
    throw Error(ErrorCode::does_not_fit, text("cannot map ", human(bytes), " of memory: ", describe_errno(failure)),
                failure);
  }
}

Mapping::~Mapping() {
  unmap_memory(data_, bytes_);
}

}  // namespace spillway::sys
