#include "spillway/plan/saved_choice.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/plan/bisect.h"
#include "spillway/plan/search.h"

namespace spillway::plan {
namespace {

/// Numbers that are tried between the fastest and the next larger one.
constexpr int kBetween = 2;
/// Of a step: what moves for so much of it leaves nothing to save.
constexpr double kBound = 0.98;

double step_seconds(const Plan& plan) {
  return plan.prediction.step_seconds;
}

/// Plans that were made, of which the fastest is kept.
class TriedKeeping {
 public:
  TriedKeeping(const PlanKeeping& plan, Plan none) : plan_(plan), none_(std::move(none)) { note(none_, true); }

  /// Whether it is the fastest so far. What has room in memory without is not to be sent to a path.
  bool add(std::size_t layers) {
    try {
      auto now = plan_(layers);
      const bool fits = now.path_bytes == 0 || none_.path_bytes > 0;
      note(now, fits);
      if (!fits || step_seconds(now) >= step_seconds(fastest())) return false;
      best_ = std::move(now);
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::does_not_fit) throw;
      tried_.push_back({.layers = layers});
      return false;
    }
  }

  [[nodiscard]] const Plan& fastest() const { return best_ ? *best_ : none_; }
  /// Whether the fastest has all else where it is when no layer keeps.
  [[nodiscard]] bool costs_nothing() const {
    return fastest().residency == none_.residency && fastest().arena == none_.arena;
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
    const bool ample = none_.ample && fastest().ample && fastest().keeping.size() == most;
    auto out = best_ ? std::move(*best_) : std::move(none_);
    out.ample = ample;
    out.keeping_tried = std::move(tried_);
    return out;
  }

 private:
  void note(const Plan& plan, bool fits) {
    tried_.push_back({.layers = plan.keeping.size(), .fits = fits, .step_seconds = fits ? step_seconds(plan) : 0});
  }

  const PlanKeeping& plan_;
  Plan none_;
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

void try_fewer(TriedKeeping& tried, std::size_t most) {
  bool before = tried.add(most);
  if (before && tried.costs_nothing()) return;
  for (auto layers = most / 2; layers > 0; layers /= 2) {
    const bool now = tried.add(layers);
    if (before && !now) return;
    before = now;
  }
}

void try_between(TriedKeeping& tried) {
  auto low = tried.fastest().keeping.size(), high = tried.next();
  for (int i = 0; i < kBetween && high > low + 1; ++i) {
    const auto middle = low + (high - low) / 2;
    (tried.add(middle) ? low : high) = middle;
  }
}

/// Whether layers that keep can make a step shorter: not where their passes take as long as before, nor where drives or
/// links, which would move no less, take all of it already.
bool may_save(const Rates& rates, const Plan& none) {
  const auto& found = none.prediction;
  const auto moving = std::max(
      {found.transfer_seconds, found.to_device_seconds, found.from_device_seconds, found.device_update_seconds});
  return rates.kept_forward + rates.kept_backward < rates.forward + rates.backward &&
         moving < kBound * found.step_seconds;
}

Plan fastest_keeping(const Problem& problem, const PlanKeeping& plan) {
  auto none = plan(0);
  const auto most = most_keeping(problem.layout, problem.budget.saved);
  if (most == 0 || !may_save(problem.rates, none)) return none;
  const auto room = with_room(problem, none);
  TriedKeeping tried(plan, std::move(none));
  if (room > 0) try_fewer(tried, room);
  if (room > 0) try_between(tried);
  return tried.take(most);
}

[[noreturn]] void refuse_keeping(const Problem& problem, const PlanKeeping& plan, std::size_t layers) {
  static_cast<void>(plan(0));  // where nothing has room, that is what is said
  const auto& [description, layout, budget, rates, durability, keeping] = problem;
  const auto& saved = budget.saved;
  const auto fits = [&](std::size_t fewer) {
    try {
      static_cast<void>(plan(fewer));
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::does_not_fit) throw;
      return false;
    }
  };
  const auto most = bisect(layers - 1, fits);
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
    const auto larger = with_saved(description, budget, layers);
    const Problem other{description, layout, larger, rates, durability, layers};
    const auto enough = room_of(other, 0).fixed + smallest_arena(other);
    message += text(", with --dram_budget ", ceil_div(enough, MiB), "MiB");
  }
  throw Error(ErrorCode::does_not_fit, message + ", or with a smaller max_length or per_device_train_batch_size");
}

}  // namespace

Plan choose_keeping(const Problem& problem, const PlanKeeping& plan) {
  const auto& asked = problem.budget.saved.keep;
  if (!asked) return fastest_keeping(problem, plan);
  const auto layers = std::min<std::size_t>(*asked, most_keeping(problem.layout, problem.budget.saved));
  try {
    return plan(layers);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit || layers == 0) throw;
  }
  refuse_keeping(problem, plan, layers);
}

std::string saved_words(const Plan& plan, const SavedActivations& saved) {
  if (saved.blocks.empty() && !saved.why.empty()) return saved.why;
  std::string out;
  if (saved.keep) {
    out = plan.keeping.size() < *saved.keep ? "as many of those asked as can" : "as asked";
  } else if (plan.keeping_tried.size() == 1) {
    out = "there is no room for those of one layer";
  } else if (!plan.keeping_tried.empty()) {
    out = "fastest of those compared, in layers that keep theirs:";
    const char* comma = " ";
    for (const auto& it : plan.keeping_tried) {
      out += text(comma, it.layers,
                  it.fits ? text(" in ", std::round(it.step_seconds * 1e3) / 1e3, " s") : text(" do not fit"));
      comma = ", ";
    }
  } else if (!saved.blocks.empty()) {
    out = "keeping them is no faster";
  }
  return saved.why.empty() ? out : text(out, "; ", saved.why);
}

}  // namespace spillway::plan
