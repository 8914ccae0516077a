#include "spillway/plan/step/snapshot_groups.h"

namespace spillway::plan::step {

SnapshotGroups::SnapshotGroups(const Description& description, const state::Layout& layout, const Placement& placement,
                               Bytes coalesce_to) {
  groups_ = snapshot_groups(description, layout, placement, coalesce_to);
  if (groups_.empty()) return;
  members_.resize(layout.chunks().size());
  for (const auto& group : groups_) {
    for (auto c = group.chunks.first; c < group.chunks.end(); ++c) {
      members_[c].with_before = c > group.chunks.first;
      members_[c].last_weight = group.chunks.end() - 1;
    }
    for (const auto& it : group.states) {
      members_[it.chunks.first].state_bytes = it.bytes;
      for (auto c = it.chunks.first; c < it.chunks.end(); ++c) members_[c].last_state = it.chunks.end() - 1;
    }
  }
}

}  // namespace spillway::plan::step
