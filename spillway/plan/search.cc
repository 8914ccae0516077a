#include "spillway/plan/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "spillway/base/error.h"
#include "spillway/plan/aside.h"
#include "spillway/plan/bisect.h"
#include "spillway/plan/early_updates.h"
#include "spillway/plan/traffic.h"

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

struct Choice {
  Placement placement = {};
  std::uint32_t level = 0;
  double seconds = 0;
  Bytes moved = 0;
  const DistributionPolicy* policy = nullptr;
  std::size_t kept = 0;  ///< units

  [[nodiscard]] bool any() const noexcept { return !placement.chunks.empty(); }
  [[nodiscard]] bool better_than(const Choice& other) const noexcept {
    return seconds != other.seconds ? seconds < other.seconds : moved < other.moved;
  }
};

/// True if a chunk lies on another tier of host memory than the first.
bool uses_later_tier(const Placement& placement) {
  return std::ranges::any_of(placement.nodes(), [](auto node) { return node > 0; });
}

class Search {
 public:
  Search(const Problem& problem, const Units& units, const Room& room, std::uint32_t device_ahead)
      : problem_(problem), units_(units), device_ahead_(device_ahead), trial_(problem, room) {
    if (!room.has_nodes()) return;
    policies_ = distribution_policies(problem.rates, room.nodes.size(), problem.budget.has_path());
    policies_aside_ = policies_aside(policies_, room.nodes.size());
  }

  std::optional<Found> run() {
    auto best = best_policy();
    if (!best.any()) return std::nullopt;
    Found out;
    trial_.distribute_by(best.policy);
    lay_out(best.placement, best.level);
    if (best.policy != nullptr) trial_.choose(Axis::memory_tiers, words_of(*best.policy));
    if (best.policy == nullptr) trial_.choose(Axis::lookahead, words_of(best.level, best.kept));
    out.early_saves = choose_early(problem_, trial_, best.placement, at(best.level));
    lengthen(best);
    out.ample = trial_.ample();
    out.compared = trial_.take_compared();
    out.laid_out = trial_.take();
    return out;
  }

 private:
  [[nodiscard]] Lookahead at(std::uint32_t level) const { return lookahead_at(problem_, level, device_ahead_); }
  bool lay_out(const Placement& placement, std::uint32_t level) { return trial_.lay_out(placement, at(level)); }

  /// Gradients and boundary activations lie aside where that may make room which is wanted: all of memory is too small,
  /// or the first tier, so that states lie on a slower one.
  Choice best_policy() {
    Choice best;
    for (const auto& policy : policies_) try_policy(&policy, best);
    if (policies_.empty()) try_policy(nullptr, best);
    if (trial_.ample() && !uses_later_tier(best.placement)) return best;
    for (const auto& policy : policies_aside_) try_policy(&policy, best);
    if (!best.any() || best.policy == nullptr || best.policy->aside.empty()) return best;
    over_all_ = over_all_tiers(*best.policy, trial_.room().nodes.size());
    try_policy(&over_all_, best);
    return best;
  }

  void try_policy(const DistributionPolicy* policy, Choice& best) {
    trial_.distribute_by(policy);
    auto now = fastest();
    if (now.any() && policy != nullptr) trial_.list(Axis::memory_tiers, words_of(*policy), now.seconds);
    if (now.any() && (!best.any() || now.seconds < kWorthIt * best.seconds)) best = std::move(now);
  }

  Choice fastest() {
    Choice best;
    auto guess = units_.about(trial_.room().arena);
    for (const auto level : kLevels) {
      const auto kept = most_kept(level, guess);
      if (!kept) continue;
      guess = *kept;
      const auto& last = trial_.last();
      const bool all = *kept == units_.free(), only = all && !best.any() && policies_.empty();
      const auto seconds = only ? 0 : seconds_at(level, *kept);
      Choice now{last.placement, level, seconds, traffic_of(last.schedule).on_paths(), trial_.policy(), *kept};
      if (!best.any() || now.better_than(best)) best = std::move(now);
      if (all) break;  // less lookahead can keep no more, and lengthen() makes the same of it
    }
    return best;
  }

  /// Seconds of a step at this level. With one tier of memory they are listed; with several the tiers are.
  double seconds_at(std::uint32_t level, std::size_t kept) {
    if (!policies_.empty()) return trial_.step_seconds();
    return trial_.compare(Axis::lookahead, words_of(level, kept));
  }

  [[nodiscard]] std::string words_of(std::uint32_t level, std::size_t kept) const {
    return text(level, level == 1 ? " chunk" : " chunks", " ahead, ", kept, " of ", units_.free(),
                " parts stay in memory");
  }

  [[nodiscard]] std::string words_of(const DistributionPolicy& policy) const {
    const auto& nodes = problem_.budget.nodes;
    const auto names = [&](const std::vector<std::uint16_t>& of) {
      std::string out;
      for (const auto node : of) out += (out.empty() ? "" : ", ") + nodes[node].name();
      return out;
    };
    return text(names(policy.nodes), policy.fill ? " one after the other" : "",
                policy.aside.empty() ? "" : text("; gradients and boundary activations on ", names(policy.aside)));
  }

  /// Units that can stay, which are laid out then; none: not even the least has room.
  std::optional<std::size_t> most_kept(std::uint32_t level, std::size_t guess) {
    const auto fits = [&](std::size_t n) { return lay_out(units_.place(n), level); };
    if (fits(guess) && guess == units_.free()) return guess;
    const auto most = units_.bytes(guess) + trial_.room().arena;
    const auto units = bisect_from(units_.about(most - std::min(most, trial_.asked())), units_.free(), fits);
    return units > 0 || fits(0) ? std::optional(units) : std::nullopt;
  }

  void lengthen(const Choice& best) {
    const auto chunks = problem_.layout.chunks().size();
    const auto most = chunks > best.level ? chunks - best.level : 0;
    const auto fits = [&](std::size_t more) {
      return lay_out(best.placement, best.level + static_cast<std::uint32_t>(more));
    };
    if (most > 0 && !fits(most)) bisect_from<std::size_t>(1, most - 1, fits);  // what is left is little, as a rule
  }

  const Problem problem_;
  const Units& units_;
  const std::uint32_t device_ahead_;
  std::vector<DistributionPolicy> policies_, policies_aside_;
  DistributionPolicy over_all_;
  Trial trial_;
};

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
  Decisions out{.own_weights = problem.budget.own_weights};
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

std::optional<Found> search(const Problem& problem, const Units& units, const Room& room, std::uint32_t device_ahead) {
  return Search(problem, units, room, device_ahead).run();
}

}  // namespace spillway::plan
