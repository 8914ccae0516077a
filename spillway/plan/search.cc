#include "spillway/plan/search.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "spillway/plan/aside.h"
#include "spillway/plan/bisect.h"
#include "spillway/plan/early_updates.h"

namespace spillway::plan {
namespace {

/// The levels of lookahead, in the order in which they are tried.
constexpr std::array<std::uint32_t, 5> kLevels{4, 3, 2, 1, 0};

DeviceSchedule device_schedule(const Problem& problem) {
  return [problem](const Placement& stays, std::uint32_t ahead) {
    return problem.schedule(least_placement(problem, stays),
                            {.device = ahead, .coalesce_to = problem.budget.device->coalesce_to});
  };
}

bool has_tiers(const FittingProblem& problem) {
  return problem.room.has_nodes();
}

/// Gradients and boundary activations lie aside where that may make room which is wanted: all of memory is too small,
/// or the first tier, so that states lie on a slower one.
void compare_tiers(const FittingProblem& problem, const Fitting& from, FittingComparison& comparison,
                   const FittingSearch& below) {
  const auto nodes = problem.room.nodes.size();
  const auto compare = [&](const DistributionPolicy& policy) {
    auto start = from;
    start.tiers = policy;
    below.run_from(start);
    if (const auto fastest = comparison.fastest_on(policy)) comparison.list(Axis::memory_tiers, *fastest);
  };
  const auto policies = distribution_policies(problem.problem.rates, nodes, problem.problem.budget.has_path());
  std::ranges::for_each(policies, compare);
  if (comparison.ample() && !comparison.uses_later_tier()) return;
  std::ranges::for_each(policies_aside(policies, nodes), compare);
  if (!comparison.any() || comparison.best_values().tiers->aside.empty()) return;
  compare(over_all_tiers(*comparison.best_values().tiers, nodes));
}

/// Units that can stay at the level of `from`, which are laid out then. None: not even the least has room.
std::optional<std::size_t> most_kept(const FittingProblem& problem, const Fitting& from, FittingComparison& comparison,
                                     std::size_t guess) {
  const auto& units = problem.units;
  const auto keep = [&](std::size_t count) {
    auto out = from;
    out.kept = count;
    return out;
  };
  const auto fits = [&](std::size_t count) { return comparison.lay_out(keep(count)); };
  if (fits(guess) && guess == units.free()) return guess;
  const auto most = units.bytes(guess) + problem.room.arena;
  const auto near = units.about(most - std::min(most, comparison.arena_bytes(keep(guess))));
  const auto count = bisect_from(near, units.free(), fits);
  return count > 0 || fits(0) ? std::optional(count) : std::nullopt;
}

bool is_always_open(const FittingProblem& /*problem*/) {
  return true;
}

/// Compares the levels of lookahead, each beside as many units as have room then. With one tier of memory they are
/// listed; with several the tiers are.
void compare_lookahead(const FittingProblem& problem, const Fitting& from, FittingComparison& comparison,
                       const FittingSearch& /*below*/) {
  auto fitting = from;
  fitting.kept = problem.units.about(problem.room.arena);
  bool is_first = true;
  for (const auto level : kLevels) {
    fitting.level = level;
    const auto kept = most_kept(problem, fitting, comparison, fitting.kept);
    if (!kept) continue;
    fitting.kept = *kept;
    const bool all = *kept == problem.units.free();
    if (all && is_first && !from.tiers) return comparison.lead(fitting);
    comparison.add(fitting);
    if (!from.tiers) comparison.list(Axis::lookahead, fitting);
    if (all) return;  // less lookahead can keep no more, and lengthen() makes the same of it
    is_first = false;
  }
}

constexpr std::array<FittingSearch::Row, 3> kRows = {{
    {.axis = Axis::memory_tiers, .is_open = has_tiers, .compare = compare_tiers, .below = 1},
    {.axis = Axis::lookahead, .is_open = is_always_open, .compare = compare_lookahead},
    {.axis = Axis::early_updates, .is_open = has_open_early, .compare = compare_early},
}};

/// Lengthens the lookahead of the best plan while there is room.
void lengthen(const FittingProblem& problem, FittingComparison& comparison) {
  const auto& best = comparison.best_values();
  const auto chunks = problem.problem.layout.chunks().size();
  const auto most = chunks > best.level ? chunks - best.level : 0;
  const auto fits = [&](std::size_t more) {
    auto longer = best;
    longer.longer = static_cast<std::uint32_t>(more);
    return comparison.lay_out(longer);
  };
  if (most > 0 && !fits(most)) bisect_from<std::size_t>(1, most - 1, fits);  // what is left is little, as a rule
}

/// Seconds of a step that early updates of the best plan save.
double early_saves(FittingComparison& comparison) {
  auto deferred = comparison.best_values();
  if (deferred.early == 0) return 0;
  const auto seconds = comparison.predict(deferred).step_seconds;
  deferred.early = 0;
  return comparison.predict(deferred).step_seconds - seconds;
}

/// True if the weights and states of this process exceed the memories of host and device together.
bool exceeds_memory(const Problem& problem) {
  const auto rule = problem.description.rule();
  const auto& device = *problem.budget.device;
  Bytes bytes = 0;
  for (const auto& chunk : problem.layout.chunks()) {
    if (!problem.description.has(problem.layout, chunk)) continue;
    bytes += weight_bytes(rule, chunk) + (has_state(chunk.training) ? state_bytes(rule, chunk) : 0);
  }
  return bytes > room_of(problem, 0).arena + (device.in_dram ? 0 : device.capacity);
}

}  // namespace

Lookahead lookahead_at(const Problem& problem, std::uint32_t level, std::uint32_t device_ahead) {
  Lookahead out{.state_read = 1, .write = 1, .weight_read = 1, .backward = 1, .grad_write = level, .head = 1};
  if (level > 1) {
    out = {.state_read = level,
           .write = level,
           .weight_read = std::min(level, 8U),
           .backward = 2,
           .grad_write = 2,
           .head = 2};
  }
  const auto& budget = problem.budget;
  out.device = device_ahead;
  if (budget.device) out.coalesce_to = budget.device->coalesce_to;
  if (budget.window > 0) out.backward = static_cast<std::uint32_t>(budget.window);
  const auto most = static_cast<std::uint32_t>(problem.layout.chunks().size());
  out.state_read = std::min(out.state_read, most);
  out.write = std::min(out.write, most);
  return out;
}

std::size_t share_of(const std::optional<double>& share, std::size_t all) noexcept {
  return static_cast<std::size_t>(std::lround(share.value_or(0) * static_cast<double>(all)));
}

Decisions read_requested_decisions(const Problem& problem) {
  Decisions out{.own_weights = problem.budget.own_weights, .durability = problem.durability()};
  if (!problem.budget.device) return out;
  out.blocks = read_requested_updates(problem);
  out.applies_changes = problem.budget.device->applies_changes.value_or(false);
  return out;
}

UpdatedThere read_requested_updates(const Problem& problem) {
  const auto& device = *problem.budget.device;
  const auto most = DeviceChoice(problem).may_live();
  const auto device_resident = share_of(device.state, most);
  return {device_resident, share_of(device.device_updated, most - device_resident)};
}

DeviceChoice choose_device(const Problem& problem, Bytes spare) {
  DeviceChoice out(problem, spare);
  if (problem.budget.device) out.choose(device_schedule(problem));
  return out;
}

std::size_t most_device_resident(const Problem& problem) {
  return DeviceChoice(problem).most_device_resident(device_schedule(problem));
}

Bytes smallest_arena(const Problem& open) {
  auto decisions = open.decisions;
  decisions.own_weights = decisions.own_weights || open.budget.own_weights;
  if (open.budget.device) decisions.blocks = read_requested_updates(open);
  const auto problem = open.copy_with(decisions);
  const auto device = choose_device(problem);
  const Units units(problem, device.placement());
  auto schedule = problem.schedule(units.place(0), lookahead_at(problem, 0, device.ahead()));
  return arena_of(problem, schedule);
}

bool spills(const Problem& open) {
  const auto problem = open.copy_with(read_requested_decisions(open));
  if (!problem.budget.has_path()) return false;
  if (problem.budget.device) return exceeds_memory(problem);
  const Units units(problem);
  const auto most = units.place(units.free());
  if (!units.all_stay(most)) return true;
  const auto ahead = choose_device(problem).ahead();
  Trial trial(problem, room_of(problem, 0));
  return std::ranges::none_of(
      kLevels, [&](std::uint32_t level) { return trial.lay_out(most, lookahead_at(problem, level, ahead)); });
}

std::span<const FittingSearch::Row> fitting_rows() noexcept {
  return kRows;
}

std::optional<Found> search(const Problem& problem, const Units& units, const Room& room, std::uint32_t device_ahead) {
  const FittingProblem fitting{problem, units, room, device_ahead};
  FittingComparison comparison(fitting);
  FittingSearch(fitting, kRows, comparison).run_from({});
  if (!comparison.any()) return std::nullopt;
  Found out;
  out.early_saves = early_saves(comparison);
  comparison.lay_out(comparison.best_values());
  lengthen(fitting, comparison);
  out.ample = comparison.ample();
  out.compared = comparison.take_compared();
  out.laid_out = comparison.take();
  return out;
}

}  // namespace spillway::plan
