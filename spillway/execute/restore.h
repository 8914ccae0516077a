// The chunks of the step that a run goes on from, brought to where they live.
#pragma once

#include <cstddef>
#include <span>

#include "spillway/execute/recovery.h"
#include "spillway/execute/replay.h"
#include "spillway/execute/resources.h"
#include "spillway/execute/run_storage.h"
#include "spillway/execute/tiers.h"

namespace spillway::execute {

class Restore {
 public:
  /// All references must outlive it.
  Restore(const RunPlan& plan, Resources& resources, RunStorage& storage, Tiers& tiers);

  /// Reads every chunk's snapshot, updates it again where it lacks updates, and writes it in that case. Tells
  /// `recovery` of it. Asks now and then whether it is to be left (base/interrupt.h).
  void run(Recovery& recovery);

 private:
  void restore(std::size_t chunk, Recovery& recovery);
  void take(std::size_t chunk);
  void update(std::size_t chunk, Recovery& recovery);
  /// The chunk in the scratch memory.
  struct Groups {
    std::span<std::byte> weight, state, remainder;
  };
  [[nodiscard]] Groups groups(std::size_t chunk) const;

  const RunPlan& plan_;
  const state::UpdateRule rule_;
  Store& store_;
  Tiers& tiers_;
  Replay replay_;
  memory::Arena larger_;  ///< where the scratch memory is too small: steps of more tokens had larger gradients of rows
  const std::span<std::byte> scratch_;
};

}  // namespace spillway::execute
