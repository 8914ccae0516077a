#include "spillway/plan/saved_choice.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/plan/bisect.h"
#include "spillway/plan/if_it_fits.h"
#include "spillway/plan/search.h"
#include "spillway/plan/spill_choice.h"

namespace spillway::plan {
namespace {

/// Numbers that are tried between the fastest and the next larger one.
constexpr int kBetween = 2;
/// The share of a step: where transfers take so much of it, there is nothing left to save.
constexpr double kBound = 0.95;

/// Compares numbers of layers that keep or spill, beside the decisions of a plan in which all recompute.
class LayerLadder {
 public:
  LayerLadder(const Problem& problem, const Decisions& from, Comparison& comparison)
      : problem_(problem), from_(from), comparison_(comparison) {
    comparison_.add(Axis::saved_activations, from_);
    const auto& none = *comparison_.find(from_);
    placement_ = none.placement;
    arena_ = none.arena;
    take(none);
  }

  /// True if it is the fastest so far.
  bool add(const SavedLayers& layers) {
    const auto decisions = add_layers(problem_, from_, layers, comparison_);
    const auto* plan = decisions ? comparison_.find(*decisions) : nullptr;
    if (plan == nullptr || priced_seconds(*plan) >= seconds_) return false;
    take(*plan);
    return true;
  }

  /// Layers that keep in the fastest plan, and its simulation.
  [[nodiscard]] std::size_t keeping() const noexcept { return keeping_; }
  [[nodiscard]] const Simulation& prediction() const noexcept { return prediction_; }
  /// True if the fastest leaves everything else where it is while no layer keeps.
  [[nodiscard]] bool costs_nothing() const noexcept { return costs_nothing_; }
  /// The least number beyond that of the fastest that was compared; none: its own.
  [[nodiscard]] std::size_t next() const {
    auto out = keeping_;
    for (const auto& it : comparison_.listed()) {
      const auto layers = it.decisions.layers.keep;
      if (layers > keeping_ && (out == keeping_ || layers < out)) out = layers;
    }
    return out;
  }

 private:
  void take(const Plan& plan) {
    seconds_ = priced_seconds(plan);
    keeping_ = plan.decisions.layers.keep;
    prediction_ = plan.prediction;
    costs_nothing_ = plan.placement == placement_ && plan.arena == arena_;
  }

  const Problem& problem_;
  const Decisions from_;
  Comparison& comparison_;
  Placement placement_;  ///< while no layer keeps
  Bytes arena_ = 0;
  double seconds_ = 0;  ///< of the fastest, as what follows
  std::size_t keeping_ = 0;
  Simulation prediction_;
  bool costs_nothing_ = false;
};

/// Layers that may have room beside what has to be there, at most. `none`: the plan in which no layer keeps.
std::size_t with_room(const Problem& problem, const Plan& none) {
  const auto& budget = problem.budget;
  const auto most = most_keeping(problem.layout, budget.saved_activations);
  const auto each = saved_bytes(problem.description, budget.saved_activations, 1);
  if (each == 0 || budget.saved_activations.on_device) return most;
  auto taken = none.dram_peak - none.kept_logits;
  if (none.path_bytes > 0) taken = room_of(problem, none.device_arena).fixed + smallest_arena(problem);
  const auto left = budget.dram - std::min(budget.dram, taken);
  return std::min<std::size_t>(most, left / each);
}

/// Numbers between one and `most` are skipped if neither end is faster: each more layer costs as much.
void try_fewer(LayerLadder& ladder, std::size_t most) {
  bool before = ladder.add({most});
  if (before && ladder.costs_nothing()) return;
  if (!before && (most == 1 || !ladder.add({1}))) return;
  for (auto layers = most / 2; layers > (before ? 0 : 1); layers /= 2) {
    const bool now = ladder.add({layers});
    if (before && !now) return;
    before = now;
  }
}

void try_between(LayerLadder& ladder) {
  auto low = ladder.keeping(), high = ladder.next();
  for (int i = 0; i < kBetween && high > low + 1; ++i) {
    const auto middle = low + (high - low) / 2;
    (ladder.add({middle}) ? low : high) = middle;
  }
}

/// True if layers that keep can make a step shorter. False if their passes take as long as with recomputation, or if
/// drives or links take all of it already: these would move no less.
bool may_save(const Rates& rates, const Plan& none) {
  const auto& prediction = none.prediction;
  return rates.kept_forward + rates.kept_backward < rates.forward + rates.backward &&
         prediction.moving_seconds() < kBound * prediction.step_seconds;
}

/// Beside so many that keep: as many as are worth it by `first`, half of these where that is no faster, or more while
/// it is.
void try_spilling(LayerLadder& ladder, std::size_t keep, std::size_t first, std::size_t most) {
  if (first == 0) return;
  if (!ladder.add({keep, first})) {
    if (first > 1) ladder.add({keep, first / 2});
    return;
  }
  for (auto layers = first; layers < most - keep;) {
    layers = std::min(2 * layers, most - keep);
    if (!ladder.add({keep, layers})) return;
  }
}

/// Beside so many that keep: all that are left, on each tier of host memory where they may lie, or fewer while these
/// have no room there or are no faster.
void try_tiers(const Problem& problem, LayerLadder& ladder, std::size_t keep, std::size_t most) {
  for (const auto home : homes_of_spilled(problem.budget)) {
    if (!home.in_memory()) continue;
    for (auto layers = most - keep; layers > 0 && !ladder.add({keep, layers, home});) layers /= 2;
  }
}

/// True if layers that would spill can stay in memory: all of them keep, and nothing goes to a path.
bool stays(const Problem& problem, const Plan& best, const SavedLayers& layers) {
  return layers.spill > 0 && best.spilling.empty() && best.path_bytes == 0 && !problem.budget.durability;
}

}  // namespace

std::optional<std::size_t> read_requested_layers(const Problem& problem) {
  const auto& asked = problem.budget.saved_activations.keep;
  if (!asked) return std::nullopt;
  return std::min<std::size_t>(*asked, most_keeping(problem.layout, problem.budget.saved_activations));
}

std::vector<SavedLayers> values_of(const Problem& problem, std::size_t layers) {
  const auto homes = layers > 0 ? homes_of_spilled(problem.budget) : std::vector<TierId>{};
  const bool all = problem.budget.saved_activations.spill == Spill::all && !homes.empty();
  const auto shares = all ? std::vector<std::size_t>{layers} : shares_to_spill(layers);
  std::vector<SavedLayers> out;
  if (!all) out.push_back({layers});
  for (const auto home : homes) {
    for (const auto share : shares) {
      if (share > 0) out.push_back({layers - share, share, home});
    }
  }
  return out;
}

std::optional<Decisions> add_layers(const Problem& problem, Decisions decisions, const SavedLayers& layers,
                                    Comparison& comparison) {
  decisions.layers = layers;
  auto& blocks = decisions.blocks;
  const auto& device = problem.budget.device;
  const bool is_free = device && !device->state && blocks != UpdatedThere{};
  if (is_free) {
    const auto most = most_device_resident(problem.copy_with(decisions));
    blocks.device_resident = std::min(blocks.device_resident, most);
  }
  if (comparison.add(Axis::saved_activations, decisions)) return decisions;
  if (!is_free) return std::nullopt;
  blocks = {};
  return comparison.add(Axis::saved_activations, decisions) ? std::optional(decisions) : std::nullopt;
}

void compare_requested_layers(const Problem& problem, const Decisions& from, Comparison& comparison,
                              const DecisionSearch& below) {
  auto start = from;
  for (const auto& layers : values_of(problem, *read_requested_layers(problem))) {
    if (comparison.is_led_by(start) && stays(problem, comparison.best(), layers)) return;
    start.layers = layers;
    if (!comparison.is_led_by(start)) below.run_from(start);
    if (comparison.is_led_by(start)) add_layers(problem, comparison.best().decisions, layers, comparison);
  }
}

void compare_saved_activations(const Problem& problem, const Decisions& from, Comparison& comparison,
                               const DecisionSearch& /*below*/) {
  const auto& saved = problem.budget.saved_activations;
  const auto most = most_keeping(problem.layout, saved);
  comparison.add(from);
  const auto* plan = comparison.find(from);
  if (plan == nullptr) return;
  const auto& none = *plan;
  if (most == 0 || !may_save(problem.rates, none)) return;
  const bool spills = can_spill(problem.budget) && (none.path_bytes > 0 || problem.budget.durability);
  const auto cost = spill_cost(problem);
  const auto alone = spills ? worth_spilling(cost, none.prediction, most) : 0;
  const auto room = saved.spill == Spill::all ? 0 : with_room(problem.copy_with(from), none);
  if (room < most) comparison.want_memory();
  LayerLadder ladder(problem, from, comparison);
  if (room > 0) try_fewer(ladder, room);
  if (room > 0) try_between(ladder);
  const auto kept = ladder.keeping();
  if (spills && kept > 0) {
    try_spilling(ladder, kept, worth_spilling(cost, ladder.prediction(), most - kept), most);
  }
  try_spilling(ladder, 0, alone, most);
  if (can_lie_aside(problem.budget) && cost.recompute_seconds > 2 * cost.copy_seconds) {  // to there, and back
    if (kept > 0) try_tiers(problem, ladder, kept, most);
    try_tiers(problem, ladder, 0, most);
  }
}

std::vector<Decisions> near_saved_activations(const Problem& problem, const Decisions& from) {
  const auto& [keep, spill, home] = from.layers;
  std::vector<Decisions> out;
  if (keep + spill == 0) return out;
  const auto most = most_keeping(problem.layout, problem.budget.saved_activations);
  const auto add = [&](std::size_t keeping, std::size_t spilling) {
    auto& it = out.emplace_back(from);
    it.layers = {keeping, spilling, spilling > 0 ? home : TierId{}};
  };
  for (const auto other : neighbours(keep, most - spill)) add(other, spill);
  for (const auto other : neighbours(spill, most - keep)) {
    if (spill > 0) add(keep, other);
  }
  return out;
}

bool can_keep_asked(const Problem& problem) {
  return read_requested_layers(problem).value_or(0) == 0 ||
         (problem.budget.saved_activations.spill == Spill::all && !homes_of_spilled(problem.budget).empty());
}

void refuse_keeping(const Problem& problem, const std::function<Plan(const Problem&)>& choose) {
  const auto& [description, layout, budget, rates, decisions] = problem;
  const auto plan = [&](std::size_t keeping) {
    auto fewer = budget;
    fewer.saved_activations.keep = keeping;
    fewer.saved_activations.spill = Spill::never;
    return choose({description, layout, fewer, rates, decisions});
  };
  static_cast<void>(plan(0));  // where nothing has room, that is what is said
  const auto& saved = budget.saved_activations;
  const auto layers = *read_requested_layers(problem);
  // one less than were asked at most: with none of them the plan has room
  const auto most =
      bisect(layers - 1, [&](std::size_t fewer) { return if_it_fits([&] { return plan(fewer); }).has_value(); });
  const bool there = saved.on_device && budget.device;
  auto message =
      text("does not fit ", there ? "on the device" : "in DRAM", ": what autograd saves of ", layers, " layers takes ",
           human(saved_bytes(description, saved, layers)), " from forward to backward, ",
           human(saved_bytes(description, saved, 1)), " of each, and ", there ? "gpu_memory" : "dram_budget", " is ",
           human(there ? budget.device->capacity : budget.dram), ". It would fit with --activation_recompute ",
           saved.layers - std::min<std::uint64_t>(saved.layers, most),
           " (layers that recompute), with --activation_recompute auto");
  if (there) {
    message += ", with a larger --gpu_memory";
  } else if (!budget.device && !budget.has_nodes()) {
    auto larger = read_requested_decisions(problem);
    larger.layers = {layers};
    const auto other = problem.copy_with(larger);
    message += text(", with --dram_budget ", ceil_div(room_of(other, 0).fixed + smallest_arena(other), MiB), "MiB");
  }
  throw Error(ErrorCode::does_not_fit, message + ", or with a smaller max_length or per_device_train_batch_size");
}

std::string saved_words(const Plan& plan, const SavedActivations& saved) {
  if (saved.blocks.empty() && !saved.why.empty()) return saved.why;
  const auto compared = plan.compared_on(Axis::saved_activations);
  std::string out;
  if (saved.keep) {
    out = plan.keeping.size() + plan.spilling.size() < *saved.keep ? "as many of those asked as can" : "as asked";
  } else if (compared.size() == 1) {
    out = "there is no room for those of one layer";
  } else if (!compared.empty()) {
    out = "fastest of those compared";
  } else if (!saved.blocks.empty()) {
    out = "keeping them is no faster";
  }
  return saved.why.empty() ? out : text(out, "; ", saved.why);
}

}  // namespace spillway::plan
