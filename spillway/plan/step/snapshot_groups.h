// Chunks that live on a device leave it for their snapshots by large copies: neighbours have theirs in the same steps,
// and their states lie behind one another.
#pragma once

#include <vector>

#include "spillway/plan/coalesced.h"

namespace spillway::plan::step {

class SnapshotGroups {
 public:
  SnapshotGroups(const Description& description, const state::Layout& layout, const Placement& placement,
                 Bytes coalesce_to);

  [[nodiscard]] const std::vector<SnapshotGroup>& groups() const noexcept { return groups_; }
  /// The snapshots of the chunk leave in the same steps as those of the chunk before.
  [[nodiscard]] bool with_before(Index chunk) const { return of(chunk).with_before; }
  /// Bytes of the states of the chunk and of those behind it in one buffer; 0: its state lies behind another one.
  [[nodiscard]] Bytes state_bytes(Index chunk) const { return of(chunk).state_bytes; }
  /// The last chunk whose weight, or state, leaves by the same copy.
  [[nodiscard]] Index last_weight(Index chunk) const { return of(chunk).last_weight; }
  [[nodiscard]] Index last_state(Index chunk) const { return of(chunk).last_state; }

 private:
  struct Member {
    bool with_before = false;
    Bytes state_bytes = 0;
    Index last_weight = kNone, last_state = kNone;
  };
  /// Without groups nothing is kept by chunk.
  [[nodiscard]] Member of(Index chunk) const { return members_.empty() ? Member{} : members_[chunk]; }

  std::vector<SnapshotGroup> groups_;
  std::vector<Member> members_;  ///< by chunk; empty: no chunk lives on a device
};

}  // namespace spillway::plan::step
