// Where a piece lies.
#pragma once

#include <compare>
#include <cstdint>

namespace spillway::storage {

/// A path of the run and the index of a piece in that path's volume.
struct Place {
  std::uint32_t path = 0;
  std::uint32_t piece = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

}  // namespace spillway::storage
