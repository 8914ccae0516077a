#include "spillway/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/plan/account.h"
#include "spillway/plan/device_blocks.h"
#include "spillway/plan/if_it_fits.h"
#include "spillway/plan/reduced_share.h"
#include "spillway/plan/refusals.h"
#include "spillway/plan/requests.h"
#include "spillway/plan/saved_choice.h"
#include "spillway/plan/search.h"
#include "spillway/plan/spill_choice.h"

namespace spillway::plan {
namespace {

/// Rates of backward passes whose products of gradients take so many times as long as all of them do.
Rates with_longer_products(Rates rates, double longer) {
  rates.kept_backward += (longer - 1) * rates.backward;
  rates.backward *= longer;
  rates.last_backward *= longer;
  return rates;
}

/// What was found with `spare` bytes of a device left alone.
struct Attempt {
  Room room;
  Found found;
  Bytes chosen = 0;  ///< bytes of the device's arena as what stays there was chosen
  Bytes excess = 0;  ///< of that arena, laid out, over what it may have
};

Attempt attempt(const Problem& problem, UpdatedThere blocks, Bytes spare) {
  const auto choice = choose_device(problem, blocks, spare);
  const Units units(problem, choice.placement());
  auto room = room_of(problem, choice.bytes());
  auto found = search(problem, units, room, choice.ahead());
  if (!found) refuse(problem, units, room, choice.ahead());
  Attempt out{std::move(room), std::move(*found), choice.bytes()};
  if (const auto& device = problem.budget.device) {
    const auto peak = device->work + out.found.laid_out.device_arena;
    out.excess = peak - std::min(peak, device->capacity);
  }
  return out;
}

/// Lifetimes on a device depend on the lookahead of the host, too, so that what was chosen to stay there may turn out
/// to be too much: then less stays.
Attempt attempt_within(const Problem& problem, UpdatedThere blocks) {
  constexpr int kTries = 8;
  Bytes spare = 0;
  auto out = attempt(problem, blocks, spare);
  for (int tried = 1; out.excess > 0 && tried < kTries; ++tried) {
    const auto& device = *problem.budget.device;
    const auto left = device.capacity - std::min(device.capacity, device.work + out.chosen);
    spare = left + out.excess;  // what was left as it was chosen is not enough
    out = attempt(problem, blocks, spare);
  }
  return out;
}

/// With a device that updates these blocks; none: as the budget says.
Plan plan_one(const Problem& problem, std::optional<UpdatedThere> there = {}) {
  check_request(problem);
  const bool device = problem.budget.device.has_value();
  const auto blocks = !device ? UpdatedThere{} : there ? *there : asked_updates(problem);
  auto [room, found, chosen, excess] = attempt_within(problem, blocks);
  Plan out{{std::move(found.laid_out)}};
  out.durability = problem.durability;
  out.ample = found.ample && !(device && problem.budget.device->in_dram);
  out.device_resident = blocks.device_resident;
  out.device_updated = blocks.device_updated;
  out.early_saves = found.early_saves;
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
  const auto found = if_it_fits([&] {
    const auto plan = plan_alone(description, whole, budget, slower);
    return InFull{.fits = true,
                  .step_seconds = plan.prediction.step_seconds,
                  .hidden_seconds = plan_alone(description, whole, budget, rates).prediction.step_seconds,
                  .on_paths = plan.read_per_step + plan.written_per_step,
                  .on_link = plan.to_device_per_step + plan.from_device_per_step};
  });
  return found.value_or(InFull{});
}

Plan fastest_plan(const Problem& problem) {
  const auto& [description, layout, budget, rates, durability, keeping] = problem;
  if (!budget.device || budget.device->state) return plan_one(problem);
  if (auto why = why_no_device_blocks(description, layout, rates); !why.empty()) {
    auto out = plan_one(problem);
    out.device_blocks_why_not = std::move(why);
    return out;
  }
  const auto blocks = DeviceChoice(description, layout, budget).may_live();
  const auto& device_updated = budget.device->device_updated;
  const auto plan = [&](UpdatedThere there) {
    if (device_updated) there.device_updated = share_of(device_updated, blocks - there.device_resident);
    return plan_one(problem, there);
  };
  return choose_there(plan, most_device_resident(problem), device_updated ? std::nullopt : std::optional(blocks));
}

/// Where layers keep or spill: as many blocks on the device as were fastest without, if these have room; else none.
Plan plan_like(const Problem& problem, UpdatedThere before) {
  before.device_resident = std::min(before.device_resident, most_device_resident(problem));
  const bool any = before.device_resident + before.device_updated > 0;
  bool ample = true;
  if (auto out = any ? if_it_fits([&] { return plan_one(problem, before); }, ample) : std::nullopt)
    return std::move(*out);
  auto out = plan_one(problem, UpdatedThere{});
  out.ample = out.ample && ample;
  return out;
}

Plan plan_with(const Problem& problem) {
  const auto& saved = problem.budget.saved;
  const auto with_layers = [&](SavedLayers layers, const auto& use) {
    const auto budget = with_saved(problem.description, problem.budget, layers);
    return use(Problem{problem.description, problem.layout, budget, problem.rates, problem.durability, layers});
  };
  UpdatedThere before;
  std::vector<DeviceBlocksTried> tried;  // of the plan that has `before`; empty: nothing was to choose
  const auto plan = [&](SavedLayers layers) {
    const bool chosen = layers.keep + layers.spill > 0 && !tried.empty();
    auto out = with_layers(
        layers, [&](const Problem& asked) { return chosen ? plan_like(asked, before) : fastest_plan(asked); });
    if (chosen) {
      out.device_blocks_tried = tried;
    } else {
      before = {out.device_resident, out.device_updated};
      tried = out.device_blocks_tried;
    }
    out.keeping = keeping_blocks(problem.layout, saved, layers.keep);
    out.spilling = spilling_blocks(problem.layout, saved, layers);
    out.spilled_to = layers.home;
    out.saved = held_bytes(problem.description, saved, layers);
    return out;
  };
  auto out = choose_saving(problem, plan);
  out.spill_cost = spill_cost(problem);
  with_layers({out.keeping.size(), out.spilling.size(), out.spilled_to},
              [&](const Problem& chosen) { account_for_parts(chosen, out); });
  return out;
}

}  // namespace

Plan plan_alone(const Description& description, const state::Layout& layout, const Budget& budget, const Rates& alone) {
  // Passes were measured while none of them had a refit.
  const auto rates = with_longer_products(alone, products_with_refits(description, layout));
  const auto with = [&](Durability durability) { return plan_with({description, layout, budget, rates, durability}); };
  if (!budget.durability && spills({description, layout, budget, rates})) {
    return with(Durability::step);  // without looking at the plan that is not durable
  }
  auto plan = with(budget.durability.value_or(Durability::none));
  if (!budget.durability && plan.path_bytes > 0) {
    const bool ample = plan.ample;
    plan = with(Durability::step);
    plan.ample = plan.ample && ample;
    return plan;
  }
  const bool stays = std::ranges::all_of(plan.placement.chunks,
                                         [](const auto& it) { return it.weight.in_memory() && it.state.in_memory(); });
  const bool needless = stays && !budget.resumes;
  return plan.durability == Durability::checkpoint && needless ? with(Durability::none) : std::move(plan);
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

/// The share of all weights that stay in memory.
double weights_kept(const Description& description, const state::Layout& layout, const Placement& placement) {
  Bytes all = 0, kept = 0;
  for (const auto& chunk : layout.chunks()) {
    if (placement[chunk.id].device_resident()) continue;  // Units has none of it
    const auto bytes = weight_bytes(description.rule(), chunk);
    all += bytes;
    kept += placement[chunk.id].weight.in_memory() ? bytes : 0;
  }
  return all == 0 ? 1 : static_cast<double>(kept) / static_cast<double>(all);
}

/// The share of the weights that passes read on a device of which a copy stays there (DeviceTier::weight).
double copies_kept(const Description& description, const state::Layout& layout, const Placement& placement) {
  const auto all = weights_of_passes(description, layout);
  const auto kept = std::ranges::count_if(all, [&](const Range& it) { return placement[it.first].weight_copy; });
  return all.empty() ? 0 : static_cast<double>(kept) / static_cast<double>(all.size());
}

/// The plan of the process that has most to keep. That each one keeps all weights is faster, since they cross the
/// network once in a step, but leaves less room for all else.
Plan plan_largest(const Description& description, const state::Layout& layout, Budget& budget, const Rates& rates) {
  const auto plan = [&] { return plan_alone(description, layout, budget, rates); };
  if (budget.own_weights) return plan();
  auto all = if_it_fits(plan);
  if (all && all->path_bytes == 0) return std::move(*all);
  budget.own_weights = true;
  auto own = if_it_fits(plan);
  if (own && (!all || own->prediction.step_seconds < all->prediction.step_seconds)) return std::move(*own);
  budget.own_weights = false;
  return all ? std::move(*all) : plan();  // which says what would fit
}

/// Asks for what a plan does with blocks on a device (DeviceTier::weight, state, device_updated).
void ask_for(const Plan& plan, const Description& description, const state::Layout& layout, Budget& budget) {
  auto& device = *budget.device;
  if (!device.weight) device.weight = copies_kept(description, layout, plan.placement);
  const auto may = DeviceChoice(description, layout, budget).may_live(), others = may - plan.device_resident;
  const auto share = [](std::size_t part, std::size_t of) {
    return of == 0 ? 0 : static_cast<double>(part) / static_cast<double>(of);
  };
  device.state = share(plan.device_resident, may);
  device.device_updated = share(plan.device_updated, others);
}

/// The plan of one process of several. Which weights stay in memory, how, and which blocks a device updates is said by
/// the process that has most to keep, so that all of them send and receive alike.
Plan plan_shared(const Description& description, const state::Layout& layout, const Budget& budget,
                 const Rates& rates) {
  check_request({description, layout, budget, rates});
  auto largest = description;
  largest.world.rank = largest_rank(description, layout);
  auto alike = budget;
  auto plan = plan_largest(largest, layout, alike, rates);
  if (largest.world.rank == description.world.rank) return plan;
  if (budget.has_path() && !budget.placement.weight) {
    alike.placement.weight = weights_kept(description, layout, plan.placement);
  }
  if (!alike.device) return plan_alone(description, layout, alike, rates);
  ask_for(plan, largest, layout, alike);
  auto out = plan_alone(description, layout, alike, rates);
  out.device_blocks_tried = plan.device_blocks_tried;
  out.device_blocks_why_not = plan.device_blocks_why_not;
  return out;
}

}  // namespace

bool least_fits(const Description& description, const state::Layout& layout, const Budget& budget, const Rates& rates) {
  if (budget.saved.keep.value_or(0) > 0) return false;
  const auto durability = budget.durability.value_or(budget.has_path() ? Durability::step : Durability::none);
  const Problem problem{description, layout, budget, rates, durability};
  const auto fits = if_it_fits([&] {
    check_request(problem);
    const auto choice = choose_device(problem);
    const Units units(problem, choice.placement());
    auto room = room_of(problem, choice.bytes());
    if (room.has_nodes()) return false;
    Trial trial(problem, std::move(room));
    if (!trial.lay_out(units.with(0), lookahead_at(problem, 0, choice.ahead()))) return false;
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
