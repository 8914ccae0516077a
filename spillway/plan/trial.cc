#include "spillway/plan/trial.h"

#include <algorithm>

#include "spillway/plan/arena_layout.h"
#include "spillway/plan/aside.h"

namespace spillway::plan {

Bytes arena_of(const Problem& problem, Schedule& schedule) {
  const auto rule = problem.description.rule();
  auto scratch = largest_chunk_bytes(rule, problem.layout);
  if (problem.redo().gradients) {
    scratch += largest_grad_bytes(rule, problem.layout);
    const auto rows = schedule.shared(Operand::rows);
    if (rows != kNone) scratch += round_up(schedule.buffers[rows].bytes, 4096);
  }
  const auto laid_out = lay_out(schedule);  // first: resident_bytes() reads the offsets it gives
  const auto later = bytes_moving_later(schedule);
  return std::max(laid_out, resident_bytes(schedule) + later + scratch);
}

bool Trial::lay_out(const Placement& placement, const Lookahead& lookahead) {
  const bool done = has_room(placement, lookahead);
  ample_ = ample_ && done;
  return done;
}

Placement Trial::distribute_buffers(Placement placement) const {
  if (policy_ == nullptr) return placement;
  const auto padding = node_padding(room_.nodes.size(), problem_.layout, problem_.weight_element());
  return put_aside(problem_, std::move(placement), policy_->aside, room_.nodes, padding);
}

bool Trial::has_room(const Placement& asked, const Lookahead& lookahead) {
  const auto placement = distribute_buffers(asked);
  auto schedule = problem_.schedule(placement, lookahead);
  asked_ = live_peak(schedule);
  if (asked_ > room_.arena) return false;
  LaidOut out{.placement = placement, .lookahead = lookahead, .arena = arena_of(problem_, schedule)};
  asked_ = out.arena;
  if (out.arena > room_.arena) return false;
  if (policy_ != nullptr && !place_on(schedule, out.arena, out)) return false;
  if (problem_.budget.device) {
    out.device_workspace = device_workspace(problem_.description, problem_.layout);
    out.device_arena = round_up(plan::lay_out(schedule, TierKind::device), 256) + out.device_workspace.bytes();
  }
  out.schedule = std::move(schedule);
  last_ = std::move(out);
  return true;
}

/// Distributes what stays to the nodes and lays it out so; false when a node or the budget is too small.
bool Trial::place_on(Schedule& schedule, Bytes arena, LaidOut& out) const {
  const auto padding = node_padding(room_.nodes.size(), problem_.layout, problem_.weight_element());
  auto free = room_.nodes;
  const auto moving = room_.fixed + arena - resident_bytes(schedule) - bytes_moving_later(schedule);
  const auto take = [](Bytes& from, Bytes what) { from -= std::min(from, what); };
  if (free[0] < moving) return false;
  take(free[0], moving);
  for (auto& it : free) take(it, padding);
  for (std::uint16_t node = 1; node <= last_node(schedule); ++node) {
    const auto bytes = bytes_on(schedule, node);
    if (bytes > 0 && (node >= free.size() || free[node] < bytes)) return false;
    if (bytes > 0) take(free[node], bytes);
  }
  const auto node = distribute(problem_.description, problem_.layout, out.placement, problem_.rates, *policy_,
                               std::move(free), problem_.budget.streams_weights);
  if (!node) return false;
  out.placement.set_nodes(*node);
  set_nodes(schedule, out.placement);
  out.regions = place_on_nodes(schedule, problem_.layout, arena);
  out.arena = out.regions.back().end;
  return out.arena <= room_.arena;
}

Simulation Trial::prediction() {
  simulated_ = last_.schedule;
  add_reuse_dependencies(simulated_);
  return predict(problem_, simulated_);
}

}  // namespace spillway::plan
