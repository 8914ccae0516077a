#include "spillway/sys/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "spillway/base/error.h"
#include "spillway/sys/errno.h"
#include "spillway/sys/fork.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLD
#define MADV_COLD 20
#endif

namespace spillway::sys {
namespace {

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

std::byte* map_aligned(Bytes bytes, Bytes alignment, int access) noexcept {
  const Bytes length = round_up(bytes, kPage);
  const Bytes slack = alignment > kPage ? alignment : 0;
  if (length < bytes || length + slack < length) {
    errno = ENOMEM;
    return nullptr;
  }
  void* raw = ::mmap(nullptr, length + slack, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(raw);
  const auto address = reinterpret_cast<std::uintptr_t>(raw);
  auto* data = begin + (round_up(address, alignment) - address);
  trim(begin, data);
  trim(data + length, begin + length + slack);
  return data;
}

}  // namespace

std::byte* map_memory(Bytes bytes, Bytes alignment) noexcept {
  return map_aligned(bytes, alignment, PROT_READ | PROT_WRITE);
}

std::byte* reserve_addresses(Bytes bytes, Bytes alignment) noexcept {
  return map_aligned(bytes, alignment, PROT_NONE);
}

bool allow_access(std::span<std::byte> range) noexcept {
  return ::mprotect(range.data(), range.size(), PROT_READ | PROT_WRITE) == 0;
}

bool map_file(std::span<std::byte> range, int fd, Bytes offset) noexcept {
  return ::mmap(range.data(), range.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                static_cast<off_t>(offset)) != MAP_FAILED;
}

void unmap_memory(std::byte* data, Bytes bytes) noexcept {
  if (data != nullptr) ::munmap(data, round_up(bytes, kPage));
}

bool advise_huge_pages(std::span<std::byte> range) noexcept {
  return ::madvise(range.data(), range.size(), MADV_HUGEPAGE) == 0;
}

bool advise_small_pages(std::span<std::byte> range) noexcept {
  return ::madvise(range.data(), range.size(), MADV_NOHUGEPAGE) == 0;
}

void split_huge_pages(std::span<std::byte> range) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(range.data());
  std::byte* at = range.data() - address % kPage;
  const std::byte* end = range.data() + range.size();
  ::madvise(at, static_cast<std::size_t>(end - at), MADV_NOHUGEPAGE);
  while (at < end) {
    ::madvise(at, kPage, MADV_COLD);
    at += kHugePage - reinterpret_cast<std::uintptr_t>(at) % kHugePage;
  }
}

std::vector<bool> resident_pages(std::span<const std::byte> range) {
  const auto address = reinterpret_cast<std::uintptr_t>(range.data());
  auto* first = const_cast<std::byte*>(range.data()) - address % kPage;  // mincore writes nothing there
  const auto bytes = static_cast<std::size_t>(range.data() + range.size() - first);
  std::vector<unsigned char> found(ceil_div(bytes, kPage), 1);
  if (::mincore(first, bytes, found.data()) != 0) found.assign(found.size(), 1);
  std::vector<bool> out;
  out.reserve(found.size());
  for (const unsigned char page : found) out.push_back((page & 1U) != 0);
  return out;
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

std::vector<FileRange> file_ranges() {
  std::vector<FileRange> out;
  std::ifstream file("/proc/self/smaps");
  bool shared = false;
  for (std::string line; std::getline(file, line);) {
    std::uintptr_t begin = 0, end = 0;
    Bytes kilobytes = 0;
    char access[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &begin, &end, access) == 3) {
      shared = access[3] == 's';
      const auto* const at = reinterpret_cast<const std::byte*>(begin);  // NOLINT(performance-no-int-to-ptr)
      if (shared) out.push_back({at, at + (end - begin), 0});
    } else if (shared && std::sscanf(line.c_str(), "Rss: %" SCNu64 " kB", &kilobytes) == 1) {
      out.back().in_memory = kilobytes * KiB;
    }
  }
  return out;
}

Mapping::Mapping(Bytes bytes) : data_(map_memory(bytes, kPage)), bytes_(bytes) {
  if (data_ == nullptr) {
    const int failure = errno;
    throw Error(ErrorCode::does_not_fit, text("cannot map ", human(bytes), " of memory: ", describe_errno(failure)),
                failure);
  }
  keep_from_children({data_, round_up(bytes_, kPage)});
}

Mapping::~Mapping() {
  unmap_memory(data_, bytes_);
}

}  // namespace spillway::sys
