#include "spillway/plan/device_blocks.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "spillway/base/error.h"
#include "spillway/plan/device_choice.h"
#include "spillway/plan/search.h"

namespace spillway::plan {
namespace {

/// A step that takes so many times as long as one with more blocks there says that still fewer are no faster either.
constexpr double kSlower = 1.05;
/// Divisor of the blocks that may be updated there. The search tries that part if updating all of them makes no faster
/// step.
constexpr std::size_t kFew = 8;

/// Compares numbers of blocks, beside other decisions.
class BlockLadder {
 public:
  BlockLadder(const Problem& problem, const Decisions& from, Comparison& comparison)
      : from_(from), comparison_(comparison), share_(problem.budget.device->device_updated) {
    const auto asked = problem.copy_with(from);
    blocks_ = DeviceChoice(asked).may_live();
    most_ = most_device_resident(asked);
  }

  /// Adds the most resident blocks that have room, half of these, and so on down to none, while a step does not grow by
  /// kSlower.
  void add_resident() {
    for (auto resident = most_;; resident /= 2) {
      const auto before = comparison_.fastest_seconds();
      const auto now = add({resident, share_of(share_, blocks_ - resident)});
      if (resident == 0 || now.value_or(0) > kSlower * before) return;
    }
  }

  /// Adds the fastest number of the other blocks that are updated there. The caller must not have given their share,
  /// and passes alone must take less than the step. Paths move no less when updates are elsewhere: with paths as the
  /// bottleneck, few numbers are tried.
  void add_updated() {
    if (share_ || !may_gain()) return;
    const auto& best = comparison_.best();
    const auto resident = best.decisions.blocks.device_resident, others = blocks_ - resident;
    const bool paths = best.prediction.transfer_seconds > best.prediction.update_seconds;
    const auto limit = paths ? comparison_.fastest_seconds() : std::numeric_limits<double>::infinity();
    add_updated(resident, others, limit, std::max<std::size_t>(1, others / kFew));
    // States that live there take the room that the states of others come to.
    if (resident > 0) add_updated(0, blocks_, comparison_.fastest_seconds(), 0);
  }

 private:
  std::optional<double> add(UpdatedThere blocks) {
    auto decisions = from_;
    decisions.blocks = blocks;
    return comparison_.add(Axis::device_blocks, decisions);
  }

  [[nodiscard]] bool may_gain() const {
    const auto& prediction = comparison_.best().prediction;
    return prediction.step_seconds > kAsFast * prediction.compute_seconds;
  }

  /// Adds all of so many other blocks, half of them, and so on while that is faster. If a step takes more than `limit`
  /// seconds with all of them and with `few` of them (0: not tried), no number between is tried.
  void add_updated(std::size_t resident, std::size_t others, double limit, std::size_t few) {
    if (others == 0) return;
    auto before = add({resident, others});
    const bool slower = before.value_or(0) > limit;
    if (slower) {
      const auto now = few > 0 && few < others ? add({resident, few}) : before;
      if (now.value_or(0) > limit) return;
    }
    for (auto updated = others / 2; updated > (slower ? few : 0); updated /= 2) {
      const auto now = add({resident, updated});
      if (before && now && *now > *before) return;
      before = now;
    }
  }

  const Decisions from_;
  Comparison& comparison_;
  const std::optional<double> share_;
  std::size_t blocks_ = 0, most_ = 0;
};

}  // namespace

void compare_device_blocks(const Problem& problem, const Decisions& from, Comparison& comparison,
                           const DecisionSearch& /*below*/) {
  BlockLadder ladder(problem, from, comparison);
  ladder.add_resident();
  if (comparison.is_led_by(from)) ladder.add_updated();
}

std::vector<Decisions> near_device_blocks(const Problem& problem, const Decisions& from) {
  const auto asked = problem.copy_with(from);
  const auto blocks = DeviceChoice(asked).may_live(), most = most_device_resident(asked);
  std::vector<Decisions> out;
  const auto add = [&](std::size_t resident, std::size_t updated) {
    auto& it = out.emplace_back(from);
    it.blocks.device_resident = std::min(resident, most);
    it.blocks.device_updated = std::min(updated, blocks - it.blocks.device_resident);
  };
  const auto [resident, updated] = from.blocks;
  for (const auto other : neighbours(resident, most)) add(other, updated);
  if (problem.budget.device->device_updated) return out;
  for (const auto other : neighbours(updated, blocks - std::min(blocks, resident))) add(resident, other);
  return out;
}

std::string why_no_device_blocks(const Description& description, const state::Layout& layout, const Rates& rates) {
  if (auto why = no_device_update(description.rule()); !why.empty()) return why;
  if (rates.device_update <= 0) return "how fast the device updates is not known";
  const auto chunks = static_cast<Index>(layout.chunks().size());
  for (Index c = 0; c < chunks; ++c) {
    if (can_be_on_device(description, layout, c)) return {};
  }
  return "no layer and no head of its own trains what a device updates";
}

DeviceBlocks device_blocks(const Plan& plan, const Description& description, const state::Layout& layout) {
  DeviceBlocks out;
  if (!plan.placement.device) return out;
  for (const auto& weights : weights_of_passes(description, layout)) {
    const auto& it = plan.placement[weights.first];
    ++(it.device_resident()          ? out.device_resident
       : it.device_updated()         ? out.device_updated
       : it.weight.has_device_copy() ? out.weights
                                     : out.streamed);
  }
  for (Index c = 0; c < layout.chunks().size(); ++c) out.changes += plan.schedule.takes_change(c) ? 1 : 0;
  for (const auto& task : plan.schedule.tasks) {  // what only passes there goes home anyway
    if (!is_link(task.lane) || traits(task.lane).fetches) continue;
    const auto& what = traits(task.what.kind);
    const bool kept =
        (what.of_gradient && plan.placement[task.what.index].gradient_there()) ||
        (task.when.phase == Phase::update && what.other_part && plan.placement[task.what.index].device_resident());
    if (kept) out.durable += task.bytes / task.when.every;
  }
  return out;
}

std::string device_blocks_words(const Plan& plan) {
  if (!plan.device_blocks_why_not.empty()) return text("updates are on the host: ", plan.device_blocks_why_not);
  if (plan.compared_on(Axis::device_blocks).empty()) {
    const auto& [resident, updated] = plan.decisions.blocks;
    const auto others = updated > 0 ? text(", and the states of ", updated, " to come for their updates") : "";
    return text(resident, " blocks were asked to live on the device", others);
  }
  return "fastest of those compared";
}

}  // namespace spillway::plan
