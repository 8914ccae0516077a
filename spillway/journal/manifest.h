// A checkpoint of state that lies on paths: which version of every chunk lies where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "spillway/journal/commit.h"
#include "spillway/journal/piece.h"

namespace spillway::journal {

/// The snapshot of a chunk, or a gradient.
struct StoredObject {
  std::uint32_t object = 0;  ///< chunk, or gradient
  std::uint64_t version = 0;
  std::vector<Piece> pieces;
  friend bool operator==(const StoredObject&, const StoredObject&) = default;
};

/// Good only with the volumes whose places it names.
struct Manifest {
  std::uint64_t identity = 0;           ///< of the layout (MetadataLayout::identity)
  Commit commit;                        ///< of the step it holds
  std::vector<StoredObject> snapshots;  ///< one per chunk, in their order
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// The bytes of a file (docs/formats/journal.md).
[[nodiscard]] std::vector<std::byte> encode(const Manifest& manifest);
/// What such a file holds. Throws Error(bad_input) where there is none, Error(io) where it cannot be read.
[[nodiscard]] std::vector<std::byte> read_manifest_file(const std::filesystem::path& file);
/// Throws Error(corrupt) for bytes that are not those of a manifest, Error(bad_input) for those of another run.
[[nodiscard]] Manifest decode_manifest(std::span<const std::byte> bytes, std::uint64_t identity);

/// The places of all their snapshots, sorted, each once.
[[nodiscard]] std::vector<storage::Place> places_of(std::span<const Manifest> manifests);

}  // namespace spillway::journal
