// Memory straight from the kernel: anonymous, or the bytes of a file.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::sys {

inline constexpr Bytes kPage = 4 * KiB;
/// Size of a huge page on the machines we know; only advice depends on it.
inline constexpr Bytes kHugePage = 2 * MiB;

/// Zeroed private memory at an address that is a multiple of `alignment` (a power of two, at least a page). `bytes` >
/// 0. nullptr with errno set when the kernel refuses.
[[nodiscard]] std::byte* map_memory(Bytes bytes, Bytes alignment) noexcept;
/// Addresses alone, as map_memory would give them: every access ends the process until allow_access() or map_file(),
/// and the kernel counts nothing as promised. nullptr with errno set when it refuses.
[[nodiscard]] std::byte* reserve_addresses(Bytes bytes, Bytes alignment) noexcept;
/// Makes whole pages of such addresses zeroed private memory. False with errno set when the kernel refuses.
bool allow_access(std::span<std::byte> range) noexcept;
/// Puts an open file's bytes from `offset` on (whole pages, as the range) in the place of what is mapped there: what is
/// written to the range is in the file, which must be as long. The descriptor may be closed afterwards. False with
/// errno set when the kernel refuses.
bool map_file(std::span<std::byte> range, int fd, Bytes offset) noexcept;
/// Gives back what map_memory or reserve_addresses returned for `bytes`.
void unmap_memory(std::byte* data, Bytes bytes) noexcept;
/// Asks for huge pages behind the range; false when the kernel has none to give.
bool advise_huge_pages(std::span<std::byte> range) noexcept;
/// Asks for none from now on; huge pages that are there stay.
bool advise_small_pages(std::span<std::byte> range) noexcept;
/// Splits huge pages behind the range, contents intact, and asks for none from now on. The kernel offers no call for
/// it: this leans on MADV_COLD, which splits a huge page that it is to treat in part. One that is pinned for a device
/// stays.
void split_huge_pages(std::span<std::byte> range) noexcept;
/// Whether each page of the range, from its first to its last byte, is in memory; all true where it cannot be asked.
[[nodiscard]] std::vector<bool> resident_pages(std::span<const std::byte> range);
/// Faults every page of the range in, for writing; contents stay. False with errno set when the kernel cannot back it.
bool populate(std::span<std::byte> range) noexcept;

/// A range of addresses that has the bytes of a file (map_file).
struct FileRange {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  Bytes in_memory = 0;  ///< that the kernel counts in this process's memory (VmRSS)
};
/// Those of this process, by rising address, as /proc/self/smaps says; none where /proc is not mounted.
[[nodiscard]] std::vector<FileRange> file_ranges();

/// map_memory as an object: page-aligned, zeroed, unmapped by the destructor. Forked children do not have it. Throws
/// Error(does_not_fit).
class Mapping {
 public:
  explicit Mapping(Bytes bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] std::span<std::byte> span() const noexcept { return {data_, bytes_}; }

 private:
  std::byte* data_;
  Bytes bytes_;
};

}  // namespace spillway::sys
