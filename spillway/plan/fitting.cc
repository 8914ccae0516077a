#include "spillway/plan/fitting.h"

#include <algorithm>
#include <tuple>

#include "spillway/base/error.h"
#include "spillway/plan/early_updates.h"
#include "spillway/plan/search.h"
#include "spillway/plan/traffic.h"

namespace spillway::plan {
namespace {

std::string join_names(const std::vector<NodeBudget>& nodes, const std::vector<std::uint16_t>& tiers) {
  std::string out;
  for (const auto tier : tiers) out += (out.empty() ? "" : ", ") + nodes[tier].name();
  return out;
}

std::string describe_tiers(const Budget& budget, const DistributionPolicy& policy) {
  const auto aside = policy.aside.empty()
                         ? ""
                         : text("; gradients and boundary activations on ", join_names(budget.nodes, policy.aside));
  return text(join_names(budget.nodes, policy.nodes), policy.fill ? " one after the other" : "", aside);
}

/// The values of the axes before early updates.
Fitting without_early(Fitting fitting) {
  fitting.early = 0;
  fitting.longer = 0;
  return fitting;
}

}  // namespace

FittingComparison::FittingComparison(const FittingProblem& problem)
    : problem_(problem), trial_(problem.problem, problem.room) {}

const FittingComparison::Outcome* FittingComparison::find(const Fitting& fitting) const {
  const auto it = std::ranges::find(outcomes_, fitting, &Outcome::fitting);
  return it == outcomes_.end() ? nullptr : &*it;
}

Placement FittingComparison::place(const Fitting& fitting) {
  auto out = problem_.units.place(fitting.kept);
  return fitting.early == 0 ? out : mark_early(std::move(out), early_order(fitting), fitting.early);
}

bool FittingComparison::lay_out(const Fitting& fitting) {
  if (laid_out_ == fitting) return true;
  const auto* outcome = find(fitting);
  const bool is_known = outcome != nullptr;
  if (is_known && !outcome->fits) return false;
  const auto placement = place(fitting);
  trial_.distribute_by(fitting.tiers ? &*fitting.tiers : nullptr);
  const auto ahead = lookahead_at(problem_.problem, fitting.level + fitting.longer, problem_.device_ahead);
  const bool fits = trial_.lay_out(placement, ahead);
  if (fits) laid_out_ = fitting;
  if (!is_known) outcomes_.push_back({.fitting = fitting, .fits = fits, .arena = trial_.asked()});
  return fits;
}

Bytes FittingComparison::arena_bytes(const Fitting& fitting) const {
  return find(fitting)->arena;
}

const Simulation& FittingComparison::predict(const Fitting& fitting) {
  if (const auto* known = find(fitting); known != nullptr && known->simulation) return *known->simulation;
  lay_out(fitting);
  auto& outcome = *std::ranges::find(outcomes_, fitting, &Outcome::fitting);
  outcome.simulation = trial_.prediction();
  outcome.simulation->tasks.clear();
  const auto moved = traffic_of(trial_.last().schedule);
  outcome.on_paths = moved.on_paths();
  outcome.on_link = moved.on_link();
  outcome.is_on_later_tier = std::ranges::any_of(trial_.last().placement.nodes(), [](auto node) { return node > 0; });
  return *outcome.simulation;
}

/// A value of a later axis has to be worth what it costs beside another value of that axis. Of levels of lookahead the
/// fastest is better, and of equals the one that moves least.
bool FittingComparison::is_better(const Fitting& one, const Fitting& other) {
  const auto seconds = predict(one).step_seconds, before = predict(other).step_seconds;
  if (one.tiers != other.tiers) return seconds < kWorthIt * before;
  if (one.early != other.early) return seconds < (other.early == 0 ? kWorthIt : 1) * before;
  return std::tuple(seconds, find(one)->on_paths) < std::tuple(before, find(other)->on_paths);
}

bool FittingComparison::add(const Fitting& fitting) {
  predict(fitting);
  const bool is_best = !best_ || is_better(fitting, *best_);
  if (is_best) best_ = fitting;
  return is_best;
}

void FittingComparison::lead(const Fitting& fitting) {
  best_ = fitting;
}

bool FittingComparison::uses_later_tier() const {
  return best_ && find(*best_)->is_on_later_tier;
}

std::optional<Fitting> FittingComparison::fastest_on(const DistributionPolicy& tiers) const {
  const Outcome* best = nullptr;
  for (const auto& it : outcomes_) {
    if (it.fitting.tiers != tiers || !it.simulation) continue;
    if (best == nullptr || it.simulation->step_seconds < best->simulation->step_seconds) best = &it;
  }
  return best == nullptr ? std::nullopt : std::optional(best->fitting);
}

const std::vector<Index>& FittingComparison::early_order(const Fitting& fitting) {
  const auto beside = without_early(fitting);
  const auto it = std::ranges::find(orders_, beside, &std::pair<Fitting, std::vector<Index>>::first);
  if (it != orders_.end()) return it->second;
  lay_out(beside);
  return orders_.emplace_back(beside, plan::early_order(problem_.problem.layout, trial_.last())).second;
}

std::string FittingComparison::describe(Axis axis, const Fitting& fitting) {
  if (axis == Axis::memory_tiers) return describe_tiers(problem_.problem.budget, *fitting.tiers);
  if (axis == Axis::early_updates) {
    return text(fitting.early, " of ", early_order(fitting).size(), " chunks that may be");
  }
  return text(fitting.level, fitting.level == 1 ? " chunk" : " chunks", " ahead, ", fitting.kept, " of ",
              problem_.units.free(), " parts stay in memory");
}

void FittingComparison::list(Axis axis, const Fitting& fitting) {
  const auto value = describe(axis, fitting);
  const auto is_same = [&](const Compared& it) { return it.axis == axis && it.value == value; };
  if (std::ranges::any_of(listed_, is_same)) return;
  const auto seconds = predict(fitting).step_seconds;
  const auto& outcome = *find(fitting);
  listed_.push_back({axis, value, problem_.problem.decisions, true, seconds, outcome.on_paths + outcome.on_link});
}

std::vector<Compared> FittingComparison::take_compared() {
  for (auto& it : listed_) it.chosen = it.value == describe(it.axis, *best_);
  return std::move(listed_);
}

}  // namespace spillway::plan
