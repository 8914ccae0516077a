// Reads stored objects from end to end and says which of their pieces are not what was written.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "spillway/journal/journal_spec.h"
#include "spillway/journal/manifest.h"
#include "spillway/storage/path.h"

namespace spillway::journal {

struct ScrubObject {
  ObjectKind kind = ObjectKind::snapshot;
  const StoredObject* stored = nullptr;
};

struct DamagedPiece {
  ScrubObject of;
  Piece piece;
  Bytes first = 0;     ///< of its bytes, in its part of the object
  std::string reason;  ///< as the path told it
};

struct Scrubbed {
  Bytes bytes = 0;  ///< read
  std::vector<DamagedPiece> damage;
};

/// Reads every place once, many at a time. Throws only when memory for that is not to be had.
[[nodiscard]] Scrubbed scrub(std::span<storage::Path* const> paths, std::span<const ScrubObject> objects);

}  // namespace spillway::journal
