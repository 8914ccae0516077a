// Anonymous memory straight from the kernel.
#pragma once

#include <cstddef>
#include <span>

#include "spillway/base/bytes.h"

namespace spillway::sys {

/// Size of a huge page on the machines we know; only advice depends on it.
inline constexpr Bytes kHugePage = 2 * MiB;

/// Zeroed private memory at an address that is a multiple of `alignment` (a power of two, at least a page). `bytes` >
/// 0. nullptr with errno set when the kernel refuses.
[[nodiscard]] std::byte* map_memory(Bytes bytes, Bytes alignment) noexcept;
/// Gives back what map_memory returned for `bytes`.
void unmap_memory(std::byte* data, Bytes bytes) noexcept;
/// Asks for huge pages behind the range; false when the kernel has none to give.
bool advise_huge_pages(std::span<std::byte> range) noexcept;
/// Faults every page of the range in, for writing; contents stay. False with errno set when the kernel cannot back it.
bool populate(std::span<std::byte> range) noexcept;

/// map_memory as an object: page-aligned, zeroed, unmapped by the destructor. Throws Error(does_not_fit).
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
