#include "spillway/journal/record_check.h"

#include <algorithm>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/storage/path.h"

namespace spillway::journal {
namespace {

/// The parts are in their order, each of whole pieces but for its last.
std::string objection_to_lengths(std::span<const Piece> pieces, std::span<const Bytes> parts) {
  std::size_t next = 0;
  for (std::uint32_t part = 0; part < parts.size(); ++part) {
    for (Bytes left = parts[part]; left > 0; ++next) {
      const auto expected = std::min<Bytes>(left, storage::kExtentAlignment);
      if (next == pieces.size() || pieces[next].part != part) return text("part ", part, " lacks ", left, " bytes");
      if (pieces[next].bytes != expected) {
        return text("piece ", next, " has ", pieces[next].bytes, " bytes instead of ", expected);
      }
      left -= expected;
    }
  }
  return next == pieces.size() ? "" : text("it has ", pieces.size(), " pieces instead of ", next);
}

std::string objection_to_gradient(std::span<const Piece> pieces, const ObjectSizes::Gradient& size) {
  if (!size.varies) return objection_to_lengths(pieces, {&size.bytes, 1});
  Bytes bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  if (bytes > size.bytes) return text("it has ", bytes, " bytes, more than ", size.bytes);
  return objection_to_lengths(pieces, {&bytes, 1});
}

}  // namespace

RecordCheck::RecordCheck(const JournalSpec& spec, ObjectSizes sizes, std::vector<Bytes> capacities)
    : spec_(spec), sizes_(std::move(sizes)), capacities_(std::move(capacities)) {}

std::string RecordCheck::objection(const Piece& piece) const {
  const auto [path, place] = piece.place;
  if (path >= capacities_.size()) return text("it names path ", path, " of ", capacities_.size());
  if (place >= capacities_[path] / storage::kExtentAlignment) {
    return text("it names piece ", place, " of path ", path, ", which has ",
                capacities_[path] / storage::kExtentAlignment);
  }
  if (piece.bytes == 0 || piece.bytes > storage::kExtentAlignment || piece.bytes % storage::kTransferAlignment != 0) {
    return text("it names a piece of ", piece.bytes, " bytes");
  }
  return {};
}

std::string RecordCheck::objection(ObjectKind kind, std::uint32_t object, std::span<const Piece> pieces) const {
  const auto objects = kind == ObjectKind::snapshot ? spec_.chunks.size() : spec_.gradients.size();
  if (object >= objects) return text("it is of object ", object, " of ", objects);
  if (kind == ObjectKind::snapshot && spec_.chunks[object].elsewhere) {
    return pieces.empty() ? "" : text("it has ", pieces.size(), " pieces, and another shard has the chunk");
  }
  for (const Piece& piece : pieces) {
    if (auto wrong = objection(piece); !wrong.empty()) return wrong;
  }
  if (kind == ObjectKind::gradient) return objection_to_gradient(pieces, sizes_.gradients[object]);
  return objection_to_lengths(pieces, sizes_.snapshots[object]);
}

std::string RecordCheck::objection(const Manifest& manifest, const StoredObject& snapshot) const {
  const Commit& commit = manifest.commit;
  const bool constant = spec_.chunks[snapshot.object].constant;
  if (snapshot.version > commit.step || (!constant && snapshot.version < commit.applied())) {
    return text("it is of step ", snapshot.version, ", the checkpoint of step ", commit.step);
  }
  return objection(ObjectKind::snapshot, snapshot.object, snapshot.pieces);
}

std::string RecordCheck::objection(const Manifest& manifest) const {
  if (!fits(manifest.commit, spec_)) return "its commit is larger than one of this run can be";
  if (manifest.snapshots.size() != spec_.chunks.size()) {
    return text("it has snapshots of ", manifest.snapshots.size(), " chunks, the model has ", spec_.chunks.size());
  }
  std::vector<storage::Place> places;
  for (const StoredObject& snapshot : manifest.snapshots) {
    const auto wrong = objection(manifest, snapshot);
    if (!wrong.empty()) return text("the snapshot of chunk ", snapshot.object, ": ", wrong);
    for (const Piece& piece : snapshot.pieces) places.push_back(piece.place);
  }
  std::ranges::sort(places);
  const auto twice = std::ranges::adjacent_find(places);
  if (twice == places.end()) return {};
  return text("two snapshots name piece ", twice->piece, " of path ", twice->path);
}

}  // namespace spillway::journal
