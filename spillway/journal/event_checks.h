// Events that a journal refuses. Each check throws Error and changes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "spillway/journal/catalog.h"
#include "spillway/journal/commit.h"
#include "spillway/journal/journal_spec.h"
#include "spillway/journal/manifest.h"
#include "spillway/journal/piece.h"

namespace spillway::journal {

/// An object that was announced, of this shard, with as many pieces as were announced, on paths that exist.
void check_pieces(const JournalSpec& spec, const MetadataLayout& layout, ObjectKind kind, std::uint32_t object,
                  std::span<const Piece> pieces);
/// A snapshot is not older than the newest of its chunk.
void check_snapshot_order(const Catalog::Chunk& known, std::uint32_t chunk, std::uint64_t version);
/// Gradients have records, this one is newer than the newest of its generation, and not too far ahead of the durable
/// step.
void check_gradient_order(const JournalSpec& spec, const Catalog::Gradient& known, std::uint32_t gradient,
                          std::uint64_t version, std::uint32_t generation, const std::optional<std::uint64_t>& durable);
/// A commit comes after step `last` (none: it is the first), and its caller's bytes and gradients are those of the
/// spec.
void check_request(const JournalSpec& spec, const CommitRequest& request, const std::optional<std::uint64_t>& last);
/// A checkpoint is of this run. Error(bad_input).
void check_manifest(const MetadataLayout& layout, const Manifest& manifest);
/// Each snapshot that a checkpoint gives up is pinned.
void check_unpinned(const Catalog& catalog, const Manifest& manifest);

}  // namespace spillway::journal
