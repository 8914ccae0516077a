#include "spillway/plan/early_updates.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/plan/bisect.h"

namespace spillway::plan {
namespace {

/// Numbers of early updates that are tried in turn while none is faster.
constexpr int kNoFaster = 3;

Placement with_early(const Placement& placement, const std::vector<Index>& order, std::size_t count) {
  auto out = placement;
  for (auto& it : out.chunks) it.when = When::decided;
  for (std::size_t i = 0; i < count; ++i) out.chunks[order[i]].when = When::early;
  return out;
}

/// True if a step with early updates could be worth it: the part that they do not shorten takes less than the step.
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

double choose_early(const Problem& problem, Trial& trial, Placement& placement, const Lookahead& lookahead) {
  const auto& budget = problem.budget;
  if (budget.update_schedule == Updates::deferred || (budget.clipping && !budget.speculative_updates)) return 0;
  const auto order = early_order(problem.layout, trial.last());
  const auto lay_out = [&](std::size_t n) { return trial.lay_out(with_early(placement, order, n), lookahead); };
  const auto prediction = trial.prediction();
  const auto deferred = prediction.step_seconds;
  const auto words = [&](std::size_t count) { return text(count, " of ", order.size(), " chunks that may be"); };
  if (budget.update_schedule == Updates::automatic && !may_be_worth_it(prediction)) return 0;
  const auto most = bisect_from(order.size(), order.size(), lay_out);
  std::size_t best = budget.update_schedule == Updates::early ? most : 0;
  auto seconds = best > 0 ? trial.step_seconds() : kWorthIt * deferred;
  if (budget.update_schedule == Updates::automatic) trial.list(Axis::early_updates, words(0), deferred);
  int slower = 0;
  for (auto count = most; budget.update_schedule == Updates::automatic && count > 0 && slower < kNoFaster; count /= 2) {
    if (!lay_out(count)) continue;
    const auto now = trial.compare(Axis::early_updates, words(count));
    ++slower;
    if (now >= seconds) continue;
    slower = 0;
    best = count;
    seconds = now;
  }
  if (best > 0) placement = with_early(placement, order, best);
  trial.lay_out(placement, lookahead);
  trial.choose(Axis::early_updates, words(best));
  return best > 0 ? deferred - seconds : 0;
}

}  // namespace spillway::plan
