#include "spillway/journal/journal_spec.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/journal/commit.h"
#include "spillway/journal/record.h"
#include "spillway/storage/checksum.h"

namespace spillway::journal {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::bad_input, message);
}

void check(const JournalSpec& spec) {
  if (spec.paths < 1 || spec.paths > kMostPaths) {
    refuse(text("a journal over ", spec.paths, " paths was asked for; 1 to ", kMostPaths, " can be kept"));
  }
  if (spec.chunks.empty()) refuse("a journal of no chunk was asked for");
  for (const SnapshotSpec& snapshot : spec.chunks) {
    if (snapshot.pieces < 1 || snapshot.period < 1 || snapshot.period > kMostPeriod) {
      refuse(text("a chunk of ", snapshot.pieces, " pieces that is written every ", snapshot.period,
                  " steps was asked for; at least one piece and 1 to ", kMostPeriod, " steps can be kept"));
    }
  }
  for (const GradientSpec& g : spec.gradients) {
    if (g.pieces < 1 || g.chunks < 1 || std::uint64_t{g.first_chunk} + g.chunks > spec.chunks.size()) {
      refuse(text("a gradient of ", g.pieces, " pieces for ", g.chunks, " chunks from chunk ", g.first_chunk,
                  " was asked for; there are ", spec.chunks.size(), " chunks"));
    }
  }
}

std::uint32_t longest_period(const JournalSpec& spec, std::uint32_t first, std::uint32_t count) {
  std::uint32_t out = 1;
  for (std::uint32_t c = first; c < first + count; ++c) out = std::max(out, spec.chunks[c].period);
  return out;
}

std::uint32_t most_pieces(const JournalSpec& spec) {
  std::uint32_t out = 1;
  for (const SnapshotSpec& snapshot : spec.chunks) out = std::max(out, snapshot.pieces);
  for (const GradientSpec& gradient : spec.gradients) out = std::max(out, gradient.pieces);
  return out;
}

std::uint64_t identify(const JournalSpec& spec, Bytes commit_bytes, Bytes record_bytes) {
  std::vector<std::uint64_t> numbers = {
      spec.paths, spec.chunks.size(), spec.gradients.size(), commit_bytes, record_bytes, spec.rank, spec.world};
  for (const SnapshotSpec& snapshot : spec.chunks) {
    numbers.push_back(snapshot.elsewhere ? ~std::uint64_t{0} : snapshot.constant ? 0 : snapshot.period);
  }
  for (const GradientSpec& g : spec.gradients) {
    numbers.push_back(g.first_chunk);
    numbers.push_back(g.chunks);
  }
  return storage::checksum(std::as_bytes(std::span(numbers)), storage::checksum(std::as_bytes(std::span(spec.run)), 0));
}

}  // namespace

bool elsewhere(const JournalSpec& spec, const GradientSpec& gradient) {
  const auto first = spec.chunks.begin() + gradient.first_chunk;
  return std::all_of(first, first + gradient.chunks, [](const SnapshotSpec& it) { return it.elsewhere; });
}

MetadataLayout::MetadataLayout(const JournalSpec& spec)
    : paths_(spec.paths), snapshots_(static_cast<std::uint32_t>(spec.chunks.size())) {
  check(spec);
  // Replay needs the commits of a period, of the step before and of the one under way; the others are slack, so that a
  // commit seldom waits for a snapshot.
  commit_slots_ = longest_period(spec, 0, snapshots_) + 5;
  first_snapshot_slot_.push_back(0);
  for (const SnapshotSpec& snapshot : spec.chunks) {
    first_snapshot_slot_.push_back(first_snapshot_slot_.back() + (snapshot.elsewhere ? 0 : kSnapshotSlots));
  }
  first_slot_.push_back(0);
  for (const GradientSpec& g : spec.gradients) {
    const std::uint32_t slots = elsewhere(spec, g) ? 0 : longest_period(spec, g.first_chunk, g.chunks) + 1;
    first_slot_.push_back(first_slot_.back() + slots);
    gradient_home_.push_back(g.first_chunk % paths_);
  }
  commit_bytes_ = round_up(most_commit_bytes(spec), kMetadataAlignment);
  record_bytes_ = round_up(encoded_bytes(most_pieces(spec)), kMetadataAlignment);
  copy_bytes_ =
      commit_slots_ * commit_bytes_ + (Bytes{first_snapshot_slot_.back()} + first_slot_.back()) * record_bytes_;
  identity_ = identify(spec, commit_bytes_, record_bytes_);
}

Bytes MetadataLayout::bytes() const noexcept {
  return round_up(used(), MiB);
}

Bytes MetadataLayout::commit(std::uint32_t copy, std::uint32_t slot) const noexcept {
  return copy * copy_bytes_ + slot * commit_bytes_;
}

std::uint32_t MetadataLayout::slots(ObjectKind kind, std::uint32_t object) const noexcept {
  const auto& first = kind == ObjectKind::snapshot ? first_snapshot_slot_ : first_slot_;
  return first[object + 1] - first[object];
}

std::uint32_t MetadataLayout::objects(ObjectKind kind) const noexcept {
  return kind == ObjectKind::snapshot ? snapshots_ : static_cast<std::uint32_t>(gradient_home_.size());
}

Bytes MetadataLayout::record(ObjectKind kind, std::uint32_t object, std::uint32_t copy,
                             std::uint32_t slot) const noexcept {
  const Bytes before = kind == ObjectKind::snapshot ? Bytes{first_snapshot_slot_[object]}
                                                    : Bytes{first_snapshot_slot_.back()} + first_slot_[object];
  return copy * copy_bytes_ + commit_slots_ * commit_bytes_ + (before + slot) * record_bytes_;
}

std::uint32_t MetadataLayout::home(ObjectKind kind, std::uint32_t object) const noexcept {
  return kind == ObjectKind::snapshot ? object % paths_ : gradient_home_[object];
}

}  // namespace spillway::journal
