#include "spillway/plan/planner.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/plan/account.h"
#include "spillway/plan/choice.h"
#include "spillway/plan/device_blocks.h"
#include "spillway/plan/if_it_fits.h"
#include "spillway/plan/reduced_share.h"
#include "spillway/plan/refusals.h"
#include "spillway/plan/requests.h"
#include "spillway/plan/search.h"
#include "spillway/plan/spill_choice.h"

namespace spillway::plan {
namespace {

/// Rates of backward passes whose products of gradients take so many times as long as all of them do.
Rates with_longer_products(Rates rates, double longer) {
  rates.kept_backward += (longer - 1) * rates.backward;
  rates.backward *= longer;
  rates.tail_backward *= longer;
  return rates;
}

/// Result of a search that leaves `spare` bytes of a device alone.
struct Attempt {
  Room room;
  Found result;
  Bytes chosen = 0;  ///< bytes of the device's arena as what stays there was chosen
  Bytes excess = 0;  ///< of that arena, laid out, over what it may have
};

Attempt attempt(const Problem& problem, Bytes spare) {
  const auto choice = choose_device(problem, spare);
  const Units units(problem, choice.placement());
  auto room = room_of(problem, choice.bytes());
  auto result = search(problem, units, room, choice.ahead());
  if (!result) refuse(problem, units, room, choice.ahead());
  Attempt out{std::move(room), std::move(*result), choice.bytes()};
  if (const auto& device = problem.budget.device) {
    const auto peak = problem.device_work() + out.result.laid_out.device_arena;
    out.excess = peak - std::min(peak, device->capacity);
  }
  return out;
}

/// Lifetimes on a device depend on the lookahead of the host, too, so that what was chosen to stay there may turn out
/// to be too much: then less stays.
Attempt attempt_within(const Problem& problem) {
  constexpr int kTries = 8;
  Bytes spare = 0;
  auto out = attempt(problem, spare);
  for (int tried = 1; out.excess > 0 && tried < kTries; ++tried) {
    const auto capacity = problem.budget.device->capacity;
    const auto left = capacity - std::min(capacity, problem.device_work() + out.chosen);
    spare = left + out.excess;  // what was left as it was chosen is not enough
    out = attempt(problem, spare);
  }
  return out;
}

/// The plan with the decisions of the problem.
Plan plan_one(const Problem& problem) {
  check_request(problem);
  auto [room, result, chosen, excess] = attempt_within(problem);
  Plan out{{std::move(result.laid_out)}};
  out.decisions = problem.decisions;
  out.compared = std::move(result.compared);
  out.durability = problem.durability();
  out.ample = result.ample && !(problem.budget.device && problem.budget.device->in_dram);
  out.early_saves = result.early_saves;
  const auto& saved = problem.budget.saved_activations;
  const auto& layers = problem.decisions.layers;
  out.keeping = keeping_blocks(problem.layout, saved, layers.keep);
  out.spilling = spilling_blocks(problem.layout, saved, layers);
  out.saved = held_bytes(problem.description, saved, layers);
  account_for_paths(problem, out);
  account_for_step(problem, room, out);
  return out;
}

/// Empty when nothing is reduced.
std::optional<InFull> plan_in_full(const Description& asked, const state::Layout& layout, const Budget& budget,
                                   const Rates& rates) {
  if (layout.reduction() == nullptr) return std::nullopt;
  const auto description = in_full(asked);
  const auto whole = description.layout();
  const auto slower = with_longer_products(rates, products_in_full(layout));
  const auto in_full = if_it_fits([&] {
    const auto plan = plan_alone(description, whole, budget, slower);
    return InFull{.fits = true,
                  .step_seconds = plan.prediction.step_seconds,
                  .hidden_seconds = plan_alone(description, whole, budget, rates).prediction.step_seconds,
                  .on_paths = plan.read_per_step + plan.written_per_step,
                  .on_link = plan.to_device_per_step + plan.from_device_per_step};
  });
  return in_full.value_or(InFull{});
}

/// Lists the cost of durability: the step with it, and the same step without.
void list_durability(const Problem& problem, Plan& plan) {
  if (problem.durability() != Durability::step) return;
  const auto add = [&](Durability value, double seconds, Bytes moved) {
    plan.compared.push_back({.axis = Axis::durability,
                             .value = name_of(value),
                             .decisions = plan.decisions,
                             .fits = true,
                             .step_seconds = seconds,
                             .moved = moved,
                             .chosen = value == problem.durability()});
  };
  const auto seconds = plan.prediction.step_seconds;
  add(Durability::step, seconds, moved_by(plan));
  add(Durability::none, seconds - plan.durable_seconds, moved_by(plan) - plan.durable_per_step);
}

/// `given`: as choose()'s.
Plan plan_given(const Description& description, const state::Layout& layout, const Budget& budget, const Rates& alone,
                const Given& given) {
  // Passes were measured while none of them had a refit.
  const auto rates = with_longer_products(alone, products_with_refits(description, layout));
  const Problem problem{description, layout, budget, rates};
  const auto make = [&](const Decisions& decisions) { return plan_one(problem.copy_with(decisions)); };
  auto out = choose(problem, make, given);
  out.spill_cost = spill_cost(problem);
  if (const auto& device = budget.device; device && !device->state) {
    out.device_blocks_why_not = why_no_device_blocks(description, layout, rates);
  }
  const auto chosen = problem.copy_with(out.decisions);
  account_for_parts(chosen, out);
  list_durability(chosen, out);
  return out;
}

}  // namespace

Plan plan_alone(const Description& description, const state::Layout& layout, const Budget& budget, const Rates& rates) {
  return plan_given(description, layout, budget, rates, {});
}

namespace {

/// The rank with the most elements that are trained.
std::size_t largest_rank(const Description& description, const state::Layout& layout) {
  std::vector<std::uint64_t> elements(description.world.size, 0);
  for (const auto& chunk : layout.chunks()) {
    if (state::is_trainable(chunk.training)) elements[description.owner(layout, chunk)] += chunk.elements;
  }
  return static_cast<std::size_t>(std::ranges::max_element(elements) - elements.begin());
}

/// The decisions of a plan with the numbers of weights that stay where they are, for other ranks to follow.
Decisions agreed_decisions(const Problem& asked, const Plan& plan) {
  auto out = plan.decisions;
  const auto problem = asked.copy_with(out);
  if (problem.budget.device) {
    const auto all = objects_of_passes(problem.description, problem.layout);
    out.device_weights = static_cast<std::size_t>(
        std::ranges::count_if(all, [&](const Range& it) { return plan.placement[it.first].weight.has_device_copy(); }));
  }
  if (problem.budget.has_path()) out.host_weights = Units(problem, plan.placement).resident_weights(plan.placement);
  return out;
}

/// The plan of one process of several. Which weights stay in memory, how, and which blocks a device updates is said by
/// the process that has most to keep, so that all of them send and receive alike.
Plan plan_shared(const Description& description, const state::Layout& layout, const Budget& budget,
                 const Rates& rates) {
  check_request({description, layout, budget, rates});
  auto largest = description;
  largest.world.rank = largest_rank(description, layout);
  auto plan = plan_alone(largest, layout, budget, rates);
  if (largest.world.rank == description.world.rank) return plan;
  const auto agreed = agreed_decisions({largest, layout, budget, rates}, plan);
  const auto shared = list_shared_axes();
  auto out = plan_given(description, layout, budget, rates, {.decisions = agreed, .axes = shared});
  std::ranges::copy_if(plan.compared, std::back_inserter(out.compared),
                       [&](const Compared& it) { return has(shared, it.axis); });
  return out;
}

}  // namespace

bool least_fits(const Description& description, const state::Layout& layout, const Budget& budget, const Rates& rates) {
  if (budget.saved_activations.keep.value_or(0) > 0) return false;
  const auto durability = budget.durability.value_or(budget.has_path() ? Durability::step : Durability::none);
  const Problem open{description, layout, budget, rates, {.durability = durability}};
  const auto problem = open.copy_with(read_requested_decisions(open));
  const auto fits = if_it_fits([&] {
    check_request(problem);
    const auto choice = choose_device(problem);
    const Units units(problem, choice.placement());
    auto room = room_of(problem, choice.bytes());
    if (room.has_nodes()) return false;
    Trial trial(problem, std::move(room));
    if (!trial.lay_out(units.place(0), lookahead_at(problem, 0, choice.ahead()))) return false;
    Plan out{{trial.take()}};
    if (const auto& device = budget.device; device && device->work + out.device_arena > device->capacity) return false;
    account_for_paths(problem, out);
    return true;
  });
  return fits.value_or(false);
}

Plan make_plan(const Description& description, const state::Layout& layout, const Budget& budget, const Rates& rates) {
  if (description.is_shared()) return plan_shared(description, layout, budget, rates);
  auto plan = plan_alone(description, layout, budget, rates);
  plan.in_full = plan_in_full(description, layout, budget, rates);
  return plan;
}

bool no_help(const Plan& plan) noexcept {
  if (!plan.in_full || !plan.in_full->fits) return false;
  return plan.prediction.step_seconds >= (1 - InFull::kNoHelp) * plan.in_full->hidden_seconds;
}

}  // namespace spillway::plan
