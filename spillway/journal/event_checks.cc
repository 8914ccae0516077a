#include "spillway/journal/event_checks.h"

#include "spillway/base/error.h"

namespace spillway::journal {
namespace {

const char* word(ObjectKind kind) {
  return kind == ObjectKind::snapshot ? "chunk " : "gradient ";
}

}  // namespace

void check_pieces(const JournalSpec& spec, const MetadataLayout& layout, ObjectKind kind, std::uint32_t object,
                  std::span<const Piece> pieces) {
  if (object >= layout.objects(kind)) {
    throw Error(ErrorCode::internal,
                text(word(kind), object, " was written; ", layout.objects(kind), " were announced"));
  }
  if (layout.slots(kind, object) == 0) {
    throw Error(ErrorCode::internal, text(word(kind), object, " was written, which another shard has"));
  }
  const std::uint32_t most = kind == ObjectKind::snapshot ? spec.chunks[object].pieces : spec.gradients[object].pieces;
  if (pieces.empty() || pieces.size() > most) {
    throw Error(ErrorCode::internal, text("an object of ", pieces.size(), " pieces; 1 to ", most, " were announced"));
  }
  for (const Piece& piece : pieces) {
    if (piece.place.path >= spec.paths) {
      throw Error(ErrorCode::internal, text("a piece on path ", piece.place.path, "; there are ", spec.paths));
    }
  }
}

void check_snapshot_order(const Catalog::Chunk& known, std::uint32_t chunk, std::uint64_t version) {
  const Version* newest = !known.written.empty()       ? known.written.back()
                          : known.recording != nullptr ? known.recording
                                                       : known.trusted;
  if (newest == nullptr || version > newest->version) return;
  throw Error(ErrorCode::internal, text("the snapshot of chunk ", chunk, " of step ", version,
                                        " was written after that of ", "step ", newest->version));
}

void check_gradient_order(const JournalSpec& spec, const Catalog::Gradient& known, std::uint32_t gradient,
                          std::uint64_t version, std::uint32_t generation,
                          const std::optional<std::uint64_t>& durable) {
  if (spec.durability != Durability::step) {
    throw Error(ErrorCode::internal, "gradients have no records when only checkpoints are durable");
  }
  if (!known.held.empty() && known.held.back()->generation == generation && version <= known.held.back()->version) {
    throw Error(ErrorCode::internal, text("gradient ", gradient, " of step ", version,
                                          " was written after that of step ", known.held.back()->version));
  }
  if (durable && version > *durable + kMostStepsAhead) {
    throw Error(ErrorCode::internal, text("gradient ", gradient, " of step ", version, " was written while only step ",
                                          *durable, " is durable"));
  }
}

void check_request(const JournalSpec& spec, const CommitRequest& request, const std::optional<std::uint64_t>& last) {
  if (last && request.step <= *last) {
    throw Error(ErrorCode::internal, text("step ", request.step, " is committed after step ", *last));
  }
  if (request.payload.size() > spec.payload) {
    throw Error(ErrorCode::internal,
                text("a commit carries ", request.payload.size(), " bytes; this journal's hold ", spec.payload));
  }
  for (const std::uint32_t gradient : request.gradients) {
    if (gradient < spec.gradients.size()) continue;
    throw Error(ErrorCode::internal, text("step ", request.step, " used gradient ", gradient, "; ",
                                          spec.gradients.size(), " were announced"));
  }
  if (request.previous >= request.step && request.step > 0) {
    throw Error(ErrorCode::internal, text("step ", request.step, " is committed after step ", request.previous));
  }
}

void check_manifest(const MetadataLayout& layout, const Manifest& manifest) {
  if (manifest.identity == layout.identity() && manifest.snapshots.size() == layout.objects(ObjectKind::snapshot)) {
    return;
  }
  throw Error(ErrorCode::bad_input,
              "a checkpoint is of another run, model or set of paths; use it with those it was "
              "made with, or export it where they are");
}

void check_unpinned(const Catalog& catalog, const Manifest& manifest) {
  for (const StoredObject& snapshot : manifest.snapshots) {
    const Version* held = catalog.find(snapshot.object, snapshot.pieces);
    if (snapshot.pieces.empty() || (held != nullptr && held->pins != 0)) continue;
    throw Error(ErrorCode::internal, text("the snapshot of chunk ", snapshot.object, " of step ", snapshot.version,
                                          " is given up by a checkpoint that does not hold it"));
  }
}

}  // namespace spillway::journal
