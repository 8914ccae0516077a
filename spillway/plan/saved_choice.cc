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

/// Of the fastest step that is known: what writes more to drives has to take less than this.
constexpr double kWorthWriting = 0.98;

double step_seconds(const Plan& plan) {
  return plan.prediction.step_seconds;
}

/// Bytes on paths of all that does not spill.
Bytes placed_on_paths(const Plan& plan) {
  const auto spilled = plan.path_breakdown.find(traits(ObjectKind::saved).name);
  return plan.path_bytes - (spilled == plan.path_breakdown.end() ? 0 : spilled->second);
}

/// Plans that were made, of which the fastest is kept.
class TriedLayers {
 public:
  /// `on_device`: what layers keep lies there.
  TriedLayers(const PlanSaving& plan, Plan none, bool on_device)
      : plan_(plan), none_(std::move(none)), on_device_(on_device) {
    note(none_, true);
  }

  /// Whether it is the fastest so far. What has room in memory without is not to be sent to a path.
  bool add(SavedLayers layers) {
    auto now = if_it_fits([&] { return plan_(layers); }, ample_);
    ample_ = ample_ && (!now || now->ample);
    if (!now) {
      tried_.push_back({.layers = layers.keep, .spilled = layers.spill, .home = layers.home});
      return false;
    }
    const bool fits = placed_on_paths(*now) == 0 || none_.path_bytes > 0;
    note(*now, fits);
    const auto enough = layers.spill > 0 && !layers.home.in_memory() ? kWorthWriting : 1.0;
    if (!fits || step_seconds(*now) >= enough * step_seconds(fastest())) return false;
    best_ = std::move(now);
    return true;
  }

  [[nodiscard]] const Plan& fastest() const { return best_ ? *best_ : none_; }
  /// Whether the fastest has all else where it is when no layer keeps.
  [[nodiscard]] bool costs_nothing() const {
    return fastest().placement == none_.placement && fastest().arena == none_.arena;
  }
  /// The least number beyond that of the fastest that was tried; none: its own.
  [[nodiscard]] std::size_t next() const {
    const auto best = fastest().keeping.size();
    auto out = best;
    for (const auto& it : tried_) {
      if (it.layers > best && (out == best || it.layers < out)) out = it.layers;
    }
    return out;
  }

  [[nodiscard]] Plan take(std::size_t most) {
    const bool room = on_device_ ? ample_ : fastest().keeping.size() == most;
    const bool ample = none_.ample && fastest().ample && room;
    auto out = best_ ? std::move(*best_) : std::move(none_);
    out.ample = ample;
    out.keeping_tried = std::move(tried_);
    return out;
  }

 private:
  void note(const Plan& plan, bool fits) {
    tried_.push_back({.layers = plan.keeping.size(),
                      .spilled = plan.spilling.size(),
                      .home = plan.spilled_to,
                      .fits = fits,
                      .step_seconds = fits ? step_seconds(plan) : 0});
  }

  const PlanSaving& plan_;
  Plan none_;
  const bool on_device_;
  bool ample_ = true;  ///< of all that were tried
  std::optional<Plan> best_;
  std::vector<KeepingTried> tried_;
};

/// Layers that may have room beside what has to be there, at most. `none`: the plan in which no layer keeps.
std::size_t with_room(const Problem& problem, const Plan& none) {
  const auto& budget = problem.budget;
  const auto most = most_keeping(problem.layout, budget.saved);
  const auto each = saved_bytes(problem.description, budget.saved, 1);
  if (each == 0 || budget.saved.on_device) return most;
  auto taken = none.dram_peak - none.kept_logits;
  if (none.path_bytes > 0) taken = room_of(problem, none.device_arena).fixed + smallest_arena(problem);
  const auto left = budget.dram - std::min(budget.dram, taken);
  return std::min<std::size_t>(most, left / each);
}

/// Where neither as many as have room are faster nor a single one, none between is tried: each more costs as much.
void try_fewer(TriedLayers& tried, std::size_t most) {
  bool before = tried.add({most});
  if (before && tried.costs_nothing()) return;
  if (!before && (most == 1 || !tried.add({1}))) return;
  for (auto layers = most / 2; layers > (before ? 0 : 1); layers /= 2) {
    const bool now = tried.add({layers});
    if (before && !now) return;
    before = now;
  }
}

void try_between(TriedLayers& tried) {
  auto low = tried.fastest().keeping.size(), high = tried.next();
  for (int i = 0; i < kBetween && high > low + 1; ++i) {
    const auto middle = low + (high - low) / 2;
    (tried.add({middle}) ? low : high) = middle;
  }
}

/// Whether layers that keep can make a step shorter: not where their passes take as long as before, nor where drives or
/// links, which would move no less, take all of it already.
bool may_save(const Rates& rates, const Plan& none) {
  const auto& found = none.prediction;
  return rates.kept_forward + rates.kept_backward < rates.forward + rates.backward &&
         found.moving_seconds() < kBound * found.step_seconds;
}

/// Beside so many that keep: as many as are worth it by `first`, half of these where that is no faster, or more while
/// it is.
void try_spilling(TriedLayers& tried, std::size_t keep, std::size_t first, std::size_t most) {
  if (first == 0) return;
  if (!tried.add({keep, first})) {
    if (first > 1) tried.add({keep, first / 2});
    return;
  }
  for (auto layers = first; layers < most - keep;) {
    layers = std::min(2 * layers, most - keep);
    if (!tried.add({keep, layers})) return;
  }
}

/// Beside so many that keep: all that are left, on each tier of host memory where they may lie, or fewer while these
/// have no room there or are no faster.
void try_tiers(const Problem& problem, TriedLayers& tried, std::size_t keep, std::size_t most) {
  for (const auto home : homes_of_spilled(problem.budget)) {
    if (!home.in_memory()) continue;
    for (auto layers = most - keep; layers > 0 && !tried.add({keep, layers, home});) layers /= 2;
  }
}

Plan fastest_saving(const Problem& problem, const PlanSaving& plan) {
  const auto& saved = problem.budget.saved;
  auto none = plan({});
  const auto most = most_keeping(problem.layout, saved);
  if (most == 0 || !may_save(problem.rates, none)) return none;
  const bool spills = can_spill(problem.budget) && (none.path_bytes > 0 || problem.budget.durability);
  const auto cost = spill_cost(problem);
  const auto alone = spills ? worth_spilling(cost, none.prediction, most) : 0;
  const auto room = saved.spill == Spill::all ? 0 : with_room(problem, none);
  TriedLayers tried(plan, std::move(none), saved.on_device && problem.budget.device.has_value());
  if (room > 0) try_fewer(tried, room);
  if (room > 0) try_between(tried);
  const auto kept = tried.fastest().keeping.size();
  if (spills && kept > 0) {
    try_spilling(tried, kept, worth_spilling(cost, tried.fastest().prediction, most - kept), most);
  }
  try_spilling(tried, 0, alone, most);
  if (can_lie_aside(problem.budget) && cost.recompute_seconds > 2 * cost.copy_seconds) {  // to there, and back
    if (kept > 0) try_tiers(problem, tried, kept, most);
    try_tiers(problem, tried, 0, most);
  }
  return tried.take(most);
}

[[noreturn]] void refuse_keeping(const Problem& problem, const PlanSaving& plan, std::size_t layers) {
  static_cast<void>(plan({}));  // where nothing has room, that is what is said
  const auto& [description, layout, budget, rates, durability, keeping] = problem;
  const auto& saved = budget.saved;
  const auto most =
      bisect(layers - 1, [&](std::size_t fewer) { return if_it_fits([&] { return plan({fewer}); }).has_value(); });
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
    const auto larger = with_saved(description, budget, {layers});
    const Problem other{description, layout, larger, rates, durability, {layers}};
    const auto enough = room_of(other, 0).fixed + smallest_arena(other);
    message += text(", with --dram_budget ", ceil_div(enough, MiB), "MiB");
  }
  throw Error(ErrorCode::does_not_fit, message + ", or with a smaller max_length or per_device_train_batch_size");
}

/// Has as many keep, or spill, as were asked.
Plan asked_saving(const Problem& problem, const PlanSaving& plan, std::size_t layers) {
  const auto& budget = problem.budget;
  const auto homes = layers > 0 ? homes_of_spilled(budget) : std::vector<TierId>{};
  const bool all = budget.saved.spill == Spill::all && !homes.empty();
  std::optional<Plan> best;
  std::vector<KeepingTried> tried;
  const auto add = [&](SavedLayers of) {
    auto now = if_it_fits([&] { return plan(of); });
    tried.push_back({of.keep, of.spill, of.home, now.has_value(), now ? step_seconds(*now) : 0});
    if (now && (!best || step_seconds(*now) < step_seconds(*best))) best = std::move(now);
  };
  if (!all) add({layers});
  const bool stays = best && best->path_bytes == 0 && !budget.durability;
  const auto shares = all ? std::vector<std::size_t>{layers} : shares_to_spill(layers);
  for (const auto home : homes) {
    for (const auto share : shares) {
      if (share > 0 && !stays) add({layers - share, share, home});
    }
  }
  if (!best && all) return plan({0, layers, homes.front()});  // which says what would fit
  if (!best) refuse_keeping(problem, plan, layers);
  if (tried.size() > 1) best->keeping_tried = std::move(tried);
  best->ample = best->ample && best->spilling.empty();
  return std::move(*best);
}

}  // namespace

Plan choose_saving(const Problem& problem, const PlanSaving& plan) {
  const auto& asked = problem.budget.saved.keep;
  if (!asked) return fastest_saving(problem, plan);
  return asked_saving(problem, plan, std::min<std::size_t>(*asked, most_keeping(problem.layout, problem.budget.saved)));
}

std::string saved_words(const Plan& plan, const SavedActivations& saved) {
  if (saved.blocks.empty() && !saved.why.empty()) return saved.why;
  std::string out;
  if (saved.keep) {
    out = plan.keeping.size() + plan.spilling.size() < *saved.keep ? "as many of those asked as can" : "as asked";
  } else if (plan.keeping_tried.size() == 1) {
    out = "there is no room for those of one layer";
  } else if (!plan.keeping_tried.empty()) {
    out = "fastest of those compared, in layers that keep theirs:";
    const char* comma = " ";
    for (const auto& it : plan.keeping_tried) {
      out += text(comma, it.layers,
                  it.spilled > 0 ? text(" beside ", it.spilled, " that spill",
                                        it.home.in_memory() ? " to another tier of memory" : "")
                                 : std::string(),
                  it.fits ? text(" in ", std::round(it.step_seconds * 1e3) / 1e3, " s") : text(" do not fit"));
      comma = ", ";
    }
  } else if (!saved.blocks.empty()) {
    out = "keeping them is no faster";
  }
  return saved.why.empty() ? out : text(out, "; ", saved.why);
}

}  // namespace spillway::plan
