// One placement, laid out: whether it has room, and what it comes to.
#pragma once

#include <utility>
#include <vector>

#include "spillway/plan/device_workspace.h"
#include "spillway/plan/nodes.h"
#include "spillway/plan/prediction.h"
#include "spillway/plan/regions.h"
#include "spillway/plan/room.h"

namespace spillway::plan {

/// A placement with its schedule and its arenas.
struct LaidOut {
  Placement placement = {};
  Lookahead lookahead = {};
  Schedule schedule = {};                 ///< laid out
  Bytes arena = 0;                        ///< bytes of the DRAM arena
  std::vector<Region> regions = {};       ///< of that arena on NUMA nodes; empty: there is one
  Bytes device_arena = 0;                 ///< bytes of the arena of a device with memory of its own
  DeviceWorkspace device_workspace = {};  ///< what lies at its end, for arithmetic
};

/// Tries placements one after the other in the same room.
class Trial {
 public:
  Trial(const Problem& problem, Room room) : problem_(problem), room_(std::move(room)) {}

  /// How what stays is distributed to NUMA nodes from now on; null, as at first: there is one node. It must outlive
  /// that.
  void distribute_by(const DistributionPolicy* policy) noexcept { policy_ = policy; }

  /// Lays a placement out; false when it has no room, and then what was laid out before stays.
  bool lay_out(const Placement& placement, const Lookahead& lookahead);
  /// True if everything that was tried had room.
  [[nodiscard]] bool ample() const noexcept { return ample_; }

  /// Bytes of the arena that the last one tried takes; where it has no room, at least.
  [[nodiscard]] Bytes asked() const noexcept { return asked_; }
  /// The last placement that had room.
  [[nodiscard]] const LaidOut& last() const noexcept { return last_; }
  [[nodiscard]] LaidOut take() noexcept { return std::move(last_); }
  [[nodiscard]] Simulation prediction();  ///< of it
  [[nodiscard]] double step_seconds() { return prediction().step_seconds; }

  [[nodiscard]] const Room& room() const noexcept { return room_; }

 private:
  bool has_room(const Placement& asked, const Lookahead& lookahead);
  /// The placement with gradients and boundary activations distributed by the policy.
  [[nodiscard]] Placement distribute_buffers(Placement placement) const;
  bool place_on(Schedule& schedule, Bytes arena, LaidOut& out) const;

  const Problem problem_;
  const Room room_;
  const DistributionPolicy* policy_ = nullptr;
  bool ample_ = true;
  Bytes asked_ = 0;
  LaidOut last_;
  Schedule simulated_;  ///< a copy of the last one that was predicted, whose memory is used again
};

/// Lays a schedule out; bytes of its arena, with room above what is resident to load and save a chunk, and to update it
/// again.
[[nodiscard]] Bytes arena_of(const Problem& problem, Schedule& schedule);

}  // namespace spillway::plan
