// Memory on nodes that the caller names, for whoever holds it.
#pragma once

#include <cstddef>
#include <span>

#include "spillway/memory/placement.h"

namespace spillway::memory {

struct PlacedOptions {
  bool huge_pages = true;  ///< where the pieces are large enough; a refusal is not an error
};

/// Anonymous zeroed memory, every page of it in place (memory/pages.h). Aligned to 4 KiB, from 2 MiB on to 2 MiB.
/// Unmapped by the destructor. Not copyable.
class Placed {
 public:
  /// `size` > 0. With nodes: as memory::place, with what it throws; without: touched and left to the kernel. Throws
  /// Error(does_not_fit) when the kernel refuses to map it.
  Placed(Bytes size, const Placement& placement, PlacedOptions options = {});
  ~Placed();
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;

  [[nodiscard]] std::span<std::byte> span() const noexcept { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  Bytes size_ = 0;
};

}  // namespace spillway::memory
