#include "spillway/plan/early_updates.h"

#include <algorithm>

#include "spillway/plan/bisect.h"

namespace spillway::plan {
namespace {

/// Numbers of early updates that are tried in turn while none is faster.
constexpr int kNoFaster = 3;

/// True if early updates may be worth it: the part of a step that they do not shorten takes less than the step.
bool may_be_worth_it(const Simulation& deferred) {
  return std::max(deferred.compute_seconds, deferred.moving_seconds()) < kWorthIt * deferred.step_seconds;
}

}  // namespace

std::vector<Index> early_order(const state::Layout& layout, const LaidOut& laid_out) {
  std::vector<Index> out;
  for (const auto& pass : laid_out.schedule.passes) {
    if (pass[Operand::gradient] == kNone) continue;
    const auto chunks = chunks_of(layout, pass);
    for (auto c = chunks.first; c < chunks.end(); ++c) {
      if (can_be_early(layout, laid_out.placement, c)) out.push_back(c);
    }
  }
  return out;
}

Placement mark_early(Placement placement, const std::vector<Index>& order, std::size_t count) {
  for (auto& it : placement.chunks) it.when = When::decided;
  for (std::size_t i = 0; i < count; ++i) placement.chunks[order[i]].when = When::early;
  return placement;
}

bool has_open_early(const FittingProblem& problem) {
  const auto& budget = problem.problem.budget;
  return budget.update_schedule != Updates::deferred && (!budget.clipping || budget.speculative_updates);
}

void compare_early(const FittingProblem& problem, const Fitting& from, FittingComparison& comparison,
                   const FittingSearch& /*below*/) {
  const bool is_asked = problem.problem.budget.update_schedule == Updates::early;
  if (!may_be_worth_it(comparison.predict(from)) && !is_asked) return;
  const auto update_early = [&](std::size_t count) {
    auto out = from;
    out.early = count;
    return out;
  };
  const auto chunks = comparison.early_order(from).size();
  const auto most =
      bisect_from(chunks, chunks, [&](std::size_t count) { return comparison.lay_out(update_early(count)); });
  if (is_asked) return comparison.lead(update_early(most));
  comparison.list(Axis::early_updates, from);
  int slower = 0;
  for (auto count = most; count > 0 && slower < kNoFaster; count /= 2) {
    const auto fitting = update_early(count);
    if (!comparison.lay_out(fitting)) continue;
    slower = comparison.add(fitting) ? 0 : slower + 1;
    comparison.list(Axis::early_updates, fitting);
  }
}

}  // namespace spillway::plan
