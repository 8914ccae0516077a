// Where a piece of an object lies, and what was written there.
#pragma once

#include <compare>
#include <cstdint>
#include <type_traits>

namespace spillway::storage {

/// A path of the run and the index of a piece in that path's volume.
struct Place {
  std::uint32_t path = 0;
  std::uint32_t piece = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

/// One piece of an object, as its record holds it.
struct Piece {
  Place place;
  std::uint32_t bytes = 0;     ///< > 0, at most the piece size of the volume
  std::uint32_t part = 0;      ///< of the object: an image has weight and state
  std::uint64_t checksum = 0;  ///< of its bytes
  friend bool operator==(const Piece&, const Piece&) = default;
};
static_assert(sizeof(Piece) == 24 && std::is_trivially_copyable_v<Piece>, "it lies in records as it is");

}  // namespace spillway::storage
