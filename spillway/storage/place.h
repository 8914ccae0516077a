// Where a piece lies.
#pragma once

#include <cstdint>

namespace spillway::storage {

/// The piece of index `piece` in the volume of path `path` of a run.
struct Place {
  std::uint32_t path = 0;
  std::uint32_t piece = 0;

  friend bool operator==(const Place&, const Place&) = default;
};

}  // namespace spillway::storage
