#include "spillway/journal/checkpoint_goal.h"

#include <algorithm>

namespace spillway::journal {

std::shared_ptr<Manifest> CheckpointGoal::make_manifest(const std::optional<std::uint64_t>& durable) const {
  if (!asked_ || !durable || *durable < commit().step) return nullptr;
  const std::uint64_t from = commit().applied();
  for (std::uint32_t chunk = 0; chunk < catalog_.chunks.size(); ++chunk) {
    if (!catalog_.is_of(chunk, catalog_.chunks[chunk].trusted, from)) return nullptr;
  }
  auto out = std::make_shared<Manifest>();
  for (std::uint32_t chunk = 0; chunk < catalog_.chunks.size(); ++chunk) {
    const Version* snapshot = catalog_.chunks[chunk].trusted;  // null: another shard has it
    out->snapshots.push_back(snapshot == nullptr ? StoredObject{chunk, from, {}}
                                                 : StoredObject{chunk, snapshot->version, snapshot->pieces});
  }
  out->identity = layout_.identity();
  out->commit = commit();
  out->commit.ancestors.clear();
  out->commit.slot = kNoSlot;
  out->commit.paths = 0;
  return out;
}

bool GatheredChunks::count(const Commit& commit) {
  const auto fits = [&](const Version* v) {
    return catalog_.is_of(static_cast<std::uint32_t>(count_), v, commit.applied(), commit.step);
  };
  for (; count_ < catalog_.chunks.size(); ++count_) {
    const Catalog::Chunk& c = catalog_.chunks[count_];
    if (!fits(c.trusted) && !fits(c.recording) && std::none_of(c.written.begin(), c.written.end(), fits)) return false;
  }
  return true;
}

}  // namespace spillway::journal
