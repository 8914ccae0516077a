#include "spillway/journal/pending_records.h"

#include <algorithm>

namespace spillway::journal {
namespace {

bool may_record(const Recordable& recordable, const Version& version) {
  return recordable && recordable->has(version.version);
}

}  // namespace

void PendingRecords::add_snapshot(std::uint32_t chunk) {
  if (!listed_[chunk]) unrecorded_.push_back(chunk);
  listed_[chunk] = true;
}

void PendingRecords::add_gradient(std::uint32_t gradient, Version* version) {
  gradients_.emplace_back(gradient, version);
  ++version->writing;
}

void PendingRecords::settle(const std::optional<std::uint64_t>& durable) {
  std::erase_if(recording_, [&](std::uint32_t chunk) {
    const Version* v = catalog_.chunks[chunk].recording;
    const bool counts =
        v->recorded && durable && v->version <= *durable && flushes_.cover(v->record_paths, v->record_tick);
    if (counts) catalog_.trust(chunk);
    return counts;
  });
}

void PendingRecords::place_gradients() {
  std::erase_if(gradients_, [&](const std::pair<std::uint32_t, Version*>& waiting) {
    const auto [gradient, version] = waiting;
    if (!version->live) {
      catalog_.record_ended(ObjectKind::gradient, gradient, version);
      return true;
    }
    version->slot = catalog_.free_slot(gradient, layout_.slots(ObjectKind::gradient, gradient));
    if (version->slot == Version::kNoSlot) return false;
    --version->writing;
    writes_.queue(ObjectKind::gradient, gradient, version);
    return true;
  });
}

void PendingRecords::begin_snapshots(const Recordable& recordable) {
  for (const std::uint32_t chunk : unrecorded_) begin_snapshot(chunk, recordable);
  std::erase_if(unrecorded_, [&](std::uint32_t chunk) {
    listed_[chunk] = !catalog_.chunks[chunk].written.empty();
    return !listed_[chunk];
  });
}

/// The newest snapshot that a record may name goes first; those before it are not needed then.
void PendingRecords::begin_snapshot(std::uint32_t chunk, const Recordable& recordable) {
  Catalog::Chunk& c = catalog_.chunks[chunk];
  if (c.recording != nullptr) return;
  const auto newest = std::find_if(c.written.rbegin(), c.written.rend(), [&](const Version* v) {
    return may_record(recordable, *v) && flushes_.cover(v->paths, v->tick);
  });
  if (newest == c.written.rend()) return;
  c.recording = *newest;
  std::erase(c.written, c.recording);
  catalog_.drop_written_before(chunk, c.recording->version);
  c.recording->slot = c.trusted == nullptr ? 0 : 1 - c.trusted->slot;
  recording_.push_back(chunk);
  writes_.queue(ObjectKind::snapshot, chunk, c.recording);
}

void PendingRecords::begin_all() {
  for (std::uint32_t chunk = 0; chunk < catalog_.chunks.size(); ++chunk) {
    if (spec_.chunks[chunk].elsewhere) continue;
    recording_.push_back(chunk);
    writes_.queue(ObjectKind::snapshot, chunk, catalog_.chunks[chunk].recording);
  }
}

void PendingRecords::want(const Recordable& recordable) {
  for (const std::uint32_t chunk : recording_) {
    const Version* v = catalog_.chunks[chunk].recording;
    if (v->recorded) flushes_.want(v->record_paths, v->record_tick);
  }
  for (const std::uint32_t chunk : unrecorded_) {
    const Catalog::Chunk& c = catalog_.chunks[chunk];
    if (c.recording != nullptr) continue;
    for (const Version* v : c.written) {
      if (may_record(recordable, *v)) flushes_.want(v->paths, v->tick);
    }
  }
}

}  // namespace spillway::journal
