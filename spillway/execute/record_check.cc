#include "spillway/execute/record_check.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/execute/store.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/rule.h"

namespace spillway::execute {
namespace {

using journal::ObjectKind;
using storage::kExtentAlignment;

/// Parts in their order, each of whole pieces but for its last.
std::string objection_to_lengths(std::span<const journal::Piece> pieces, const std::vector<Bytes>& parts) {
  std::size_t next = 0;
  for (std::uint32_t part = 0; part < parts.size(); ++part) {
    for (Bytes left = parts[part]; left > 0; ++next) {
      const auto expected = std::min<Bytes>(left, kExtentAlignment);
      if (next == pieces.size() || pieces[next].part != part) return text("part ", part, " lacks ", left, " bytes");
      if (pieces[next].bytes != expected) {
        return text("piece ", next, " has ", pieces[next].bytes, " bytes instead of ", expected);
      }
      left -= expected;
    }
  }
  return next == pieces.size() ? "" : text("it has ", pieces.size(), " pieces instead of ", next);
}

/// Of the rows that a step had: as many bytes as there were, in whole pieces but for the last.
std::string objection_to_rows(std::span<const journal::Piece> pieces) {
  Bytes bytes = 0;
  for (const auto& piece : pieces) bytes += piece.bytes;
  if (bytes > plan::kRowsPart) return text("it has ", bytes, " bytes, more than ", plan::kRowsPart);
  return objection_to_lengths(pieces, {bytes});
}

std::uint32_t dense_gradients(const plan::Description& description, const state::Layout& layout) {
  return GradientIds(description, layout).of_rows(0);
}

}  // namespace

RecordCheck::RecordCheck(const plan::Description& description, const state::Layout& layout,
                         const journal::JournalSpec& spec, std::span<storage::Path* const> paths)
    : description_(description), layout_(layout), spec_(spec), first_rows_(dense_gradients(description, layout)) {
  for (const auto* path : paths) capacities_.push_back(path->capacity());
}

std::string RecordCheck::objection(const journal::Piece& piece) const {
  const auto [path, place] = piece.place;
  if (path >= capacities_.size()) return text("it names path ", path, " of ", capacities_.size());
  if (place >= capacities_[path] / kExtentAlignment) {
    return text("it names piece ", place, " of path ", path, ", which has ", capacities_[path] / kExtentAlignment);
  }
  if (piece.bytes == 0 || piece.bytes > kExtentAlignment || piece.bytes % storage::kTransferAlignment != 0) {
    return text("it names a piece of ", piece.bytes, " bytes");
  }
  return {};
}

std::vector<Bytes> RecordCheck::parts_of(ObjectKind kind, std::uint32_t object) const {
  const auto rule = description_.rule();
  if (kind == ObjectKind::gradient) return {grad_bytes(rule, layout_.chunks()[spec_.gradients[object].first_chunk])};
  const auto& chunk = layout_.chunks()[object];
  static_assert(kWeightPart == 0 && kStatePart == 1);
  return {weight_bytes(rule, chunk), state_bytes(rule, chunk)};
}

std::string RecordCheck::objection(ObjectKind kind, std::uint32_t object,
                                   std::span<const journal::Piece> pieces) const {
  const auto objects = kind == ObjectKind::snapshot ? spec_.chunks.size() : spec_.gradients.size();
  if (object >= objects) return text("it is of object ", object, " of ", objects);
  for (const auto& piece : pieces) {
    if (auto wrong = objection(piece); !wrong.empty()) return wrong;
  }
  if (kind == ObjectKind::gradient && object >= first_rows_) return objection_to_rows(pieces);
  return objection_to_lengths(pieces, parts_of(kind, object));
}

std::string RecordCheck::objection(const journal::Manifest& manifest, const journal::StoredObject& snapshot) const {
  const auto& commit = manifest.commit;
  const bool constant = spec_.chunks[snapshot.object].constant;
  if (snapshot.version > commit.step || (!constant && snapshot.version < commit.applied())) {
    return text("it is of step ", snapshot.version, ", the checkpoint of step ", commit.step);
  }
  return objection(ObjectKind::snapshot, snapshot.object, snapshot.pieces);
}

std::string RecordCheck::objection(const journal::Manifest& manifest) const {
  if (!fits(manifest.commit, spec_)) return "its commit is larger than one of this run can be";
  if (manifest.snapshots.size() != spec_.chunks.size()) {
    return text("it has snapshots of ", manifest.snapshots.size(), " chunks, the model has ", spec_.chunks.size());
  }
  std::vector<storage::Place> places;
  for (const auto& snapshot : manifest.snapshots) {
    const auto wrong = objection(manifest, snapshot);
    if (!wrong.empty()) return text("the snapshot of chunk ", snapshot.object, ": ", wrong);
    for (const auto& piece : snapshot.pieces) places.push_back(piece.place);
  }
  std::ranges::sort(places);
  const auto twice = std::ranges::adjacent_find(places);
  if (twice == places.end()) return {};
  return text("two snapshots name piece ", twice->piece, " of path ", twice->path);
}

}  // namespace spillway::execute
