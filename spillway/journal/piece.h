// A piece of an object, as its record holds it: where it lies, and what was written there.
#pragma once

#include <cstdint>
#include <type_traits>

#include "spillway/storage/place.h"

namespace spillway::journal {

/// The parts of a chunk snapshot.
inline constexpr std::uint32_t kWeightPart = 0, kStatePart = 1, kSnapshotParts = 2;

struct Piece {
  storage::Place place;
  std::uint32_t bytes = 0;     ///< > 0, at most the piece size of the volume
  std::uint32_t part = 0;      ///< of the object: a snapshot has two, a gradient has part 0 alone
  std::uint64_t checksum = 0;  ///< of its bytes
  friend bool operator==(const Piece&, const Piece&) = default;
};
static_assert(sizeof(Piece) == 24 && std::is_trivially_copyable_v<Piece>, "it lies in records as it is");

}  // namespace spillway::journal
