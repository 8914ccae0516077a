#include "spillway/execute/restore.h"

#include <algorithm>
#include <cstring>

#include "spillway/base/interrupt.h"

namespace spillway::execute {
namespace {

memory::Arena larger_than(std::span<const std::byte> scratch, const RunPlan& plan, const Replay& replay) {
  const auto needed =
      largest_chunk_bytes(plan.description.rule(), plan.layout) + round_up(replay.scratch(), Bytes{4096});
  return memory::Arena(needed > scratch.size() ? needed : 0);
}

}  // namespace

Restore::Restore(const RunPlan& plan, Resources& resources, RunStorage& storage, Tiers& tiers)
    : plan_(plan),
      rule_(plan.description.rule()),
      store_(*storage.store()),
      tiers_(tiers),
      replay_(storage.replay(resources.thread_pool())),
      larger_(larger_than(resources.scratch(), plan, replay_)),
      scratch_(larger_.size() > 0 ? larger_.span() : resources.scratch()) {}

void Restore::run(Recovery& recovery) {
  const auto& mine = plan_.ownership.mine();
  recovery.chunks = mine.size();
  for (const auto c : mine) {
    throw_if_interrupted();
    restore(c, recovery);
  }
}

void Restore::restore(std::size_t chunk, Recovery& recovery) {
  const auto missing = replay_.missing(chunk);
  const Clocked clocked(missing == 0 ? recovery.phases.reading : recovery.phases.replay);
  if (missing == 0) return take(chunk);
  ++recovery.replayed;
  recovery.replayed_steps = std::max(recovery.replayed_steps, missing);
  update(chunk, recovery);
}

Restore::Groups Restore::groups(std::size_t chunk) const {
  const auto& it = plan_.layout.chunks()[chunk];
  const auto weights = weight_bytes(rule_, it), states = state_bytes(rule_, it);
  return {scratch_.first(weights), scratch_.subspan(weights, states), scratch_.subspan(weights + states)};
}

/// The snapshot is up to date, and stays where it is.
void Restore::take(std::size_t chunk) {
  const auto at = groups(chunk);
  replay_.expect_snapshot(chunk);
  store_.adopt(replay_.snapshot(chunk));
  if (!tiers_.on_device(chunk)) {
    return replay_.load(chunk, tiers_.resident_weight(chunk), tiers_.resident_state(chunk), {});
  }
  replay_.load(chunk, at.weight.data(), at.state.data(), {});
  tiers_.store(chunk, at.weight.data(), at.state.data());
}

void Restore::update(std::size_t chunk, Recovery& recovery) {
  const auto at = groups(chunk);
  replay_.load(chunk, at.weight.data(), at.state.data(), at.remainder);
  store_.write(plan::ObjectKind::weight, chunk, at.weight, recovery.applied);
  store_.write(plan::ObjectKind::state, chunk, at.state, recovery.applied);
  store_.publish(chunk, recovery.applied);
  if (tiers_.on_device(chunk)) tiers_.store(chunk, at.weight.data(), at.state.data());
  if (auto* weight = tiers_.resident_weight(chunk)) std::memcpy(weight, at.weight.data(), at.weight.size());
  if (auto* state = tiers_.resident_state(chunk)) std::memcpy(state, at.state.data(), at.state.size());
}

}  // namespace spillway::execute
