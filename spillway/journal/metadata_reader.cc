#include "spillway/journal/metadata_reader.h"

#include <algorithm>
#include <memory>

#include "spillway/base/blank.h"
#include "spillway/base/error.h"
#include "spillway/base/interrupt.h"
#include "spillway/storage/unreadable.h"

namespace spillway::journal {
namespace {

constexpr Bytes kReadBytes = MiB;

/// A write that landed in another slot, or a read that gave another one.
std::string objection_to_slot(std::uint32_t written, std::uint32_t read) {
  return written == kNoSlot || written == read ? "" : text("it was written to slot ", written);
}

}  // namespace

MetadataReader::MetadataReader(const JournalSpec& spec, Media& media, const RecoveryOptions& options)
    : spec_(spec), layout_(spec), paths_(spec.paths), media_(media), options_(options) {
  const Bytes block = std::max({std::min(kReadBytes, layout_.used()), layout_.commit_bytes(), layout_.record_bytes()});
  memory_.resize(block + kMetadataAlignment);
  void* start = memory_.data();
  std::size_t space = memory_.size();
  std::align(kMetadataAlignment, block, start, space);
  block_ = {static_cast<std::byte*>(start), block};
}

std::string MetadataReader::name(ObjectKind kind, std::uint32_t object) const {
  if (options_.name) return options_.name(kind, object);
  return text(kind == ObjectKind::snapshot ? "chunk " : "gradient ", object);
}

std::string MetadataReader::places_of(ObjectKind kind, std::uint32_t object) const {
  std::string out;
  for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
    out += text(copy == 0 ? "" : " and ", "path ", (layout_.home(kind, object) + copy) % paths_, " from byte ",
                layout_.record(kind, object, copy, 0));
  }
  return out + " of the metadata";
}

void MetadataReader::walk(std::uint32_t path, Bytes offset, Bytes size, Bytes count, const Slot& slot) {
  const Bytes together = block_.size() / size;
  while (count > 0) {
    throw_if_interrupted();
    const Bytes now = std::min(count, together);
    walk_run(path, offset, size, now, slot);
    offset += now * size;
    count -= now;
  }
}

void MetadataReader::walk_run(std::uint32_t path, Bytes offset, Bytes size, Bytes count, const Slot& slot) {
  const std::span<std::byte> run = block_.first(count * size);
  const std::string why = storage::why_unreadable([&] { media_.read(path, offset, run); });
  const bool read = why.empty();
  if (!read) why_unreadable_ = why;
  for (Bytes i = 0; i < count; ++i) {
    if (read) {
      slot(offset + i * size, run.subspan(i * size, size));
    } else if (count == 1) {
      slot(offset, {});
    } else {
      walk_run(path, offset + i * size, size, 1, slot);
    }
  }
}

bool MetadataReader::whole(SlotState state, const Walked& slot, const std::string& objection) {
  if (state == SlotState::foreign) ++foreign;
  const bool bad = state == SlotState::damaged || (state == SlotState::whole && !objection.empty());
  const char* const why = slot.bytes.empty() ? ", which cannot be read" : objection.empty() ? "" : ": ";
  if (bad) damage.push_back({slot.path, slot.offset, slot.size, text(slot.what(), why, objection)});
  return state == SlotState::whole && !bad;
}

/// A whole record counts whatever is behind it; that should be zeros, and is told as damage where it is not.
void MetadataReader::check_padding(const Walked& slot, Bytes used) {
  const auto end = std::min<Bytes>(round_up(used, kMetadataAlignment), slot.bytes.size());
  if (blank(slot.bytes.first(end).subspan(used))) return;
  damage.push_back({slot.path, slot.offset, slot.size, slot.what() + ", behind its end"});
}

std::string MetadataReader::objection(SlotState state, const RecordHead& head, const std::vector<Piece>& pieces,
                                      std::uint32_t slot) const {
  if (state != SlotState::whole) return "";
  if (auto wrong = objection_to_slot(head.slot, slot); !wrong.empty()) return wrong;
  return options_.objection ? options_.objection(head.kind, head.object, pieces) : "";
}

bool MetadataReader::is_unclear(std::uint32_t path, std::uint32_t slot) const {
  return std::ranges::find(unclear_slots_, std::pair(path, slot)) != unclear_slots_.end();
}

void MetadataReader::commits(const std::function<void(const Commit&, std::uint32_t slot, std::uint32_t path)>& found) {
  Commit commit;
  for (std::uint32_t path = 0; path < paths_; ++path) {
    std::vector<bool> given(layout_.commit_slots());
    for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
      std::uint32_t slot = 0;
      const std::function what = [&] { return text("the commit in slot ", slot, ", copy ", copy); };
      walk(path, layout_.commit(copy, 0), layout_.commit_bytes(), layout_.commit_slots(),
           [&](Bytes offset, std::span<const std::byte> bytes) {
             SlotState state = decode(bytes, layout_.identity(), commit);
             if (state == SlotState::whole && !fits(commit, spec_)) state = SlotState::damaged;
             if (state != SlotState::empty) written |= std::uint64_t{1} << path;
             if (!bytes.empty()) given[slot] = true;
             const Walked walked{path, offset, layout_.commit_bytes(), bytes, what};
             if (whole(state, walked, state == SlotState::whole ? objection_to_slot(commit.slot, slot) : "")) {
               check_padding(walked, encoded_bytes(commit));
               found(commit, slot, path);
             } else if (state != SlotState::empty) {
               unclear_slots_.emplace_back(path, slot);
             }
             ++slot;
           });
    }
    if (unread.empty() && std::ranges::find(given, false) != given.end()) unread = why_unreadable_;
  }
}

void MetadataReader::records(
    ObjectKind kind,
    const std::function<void(const RecordHead&, const std::vector<Piece>&, std::uint32_t slot)>& found) {
  const std::uint32_t objects = layout_.objects(kind);
  if (objects == 0) return;
  const std::uint32_t last = objects - 1;
  RecordHead head;
  std::vector<Piece> pieces;
  for (std::uint32_t path = 0; path < paths_; ++path) {
    for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
      const Bytes from = layout_.record(kind, 0, copy, 0);
      const Bytes to = layout_.record(kind, last, copy, layout_.slots(kind, last));
      std::uint32_t object = 0, slot = 0;
      const auto skip_elsewhere = [&] {
        while (object < objects && layout_.slots(kind, object) == 0) ++object;
      };
      skip_elsewhere();
      const std::function what = [&] {
        return text("the record of ", kind == ObjectKind::snapshot ? "the snapshot of " : "the gradient of ",
                    name(kind, object), ", copy ", copy, ", slot ", slot);
      };
      walk(path, from, layout_.record_bytes(), (to - from) / layout_.record_bytes(),
           [&](Bytes offset, std::span<const std::byte> bytes) {
             SlotState state = decode(bytes, layout_.identity(), head, pieces);
             if (state == SlotState::whole && (head.kind != kind || head.object != object)) state = SlotState::damaged;
             recorded = recorded || state != SlotState::empty;
             const Walked walked{path, offset, layout_.record_bytes(), bytes, what};
             if (whole(state, walked, objection(state, head, pieces, slot))) {
               check_padding(walked, encoded_bytes(pieces.size()));
               found(head, pieces, slot);
             }
             if (++slot < layout_.slots(kind, object)) return;
             ++object;
             slot = 0;
             skip_elsewhere();
           });
    }
  }
}

}  // namespace spillway::journal
