#include "spillway/plan/comparison.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <tuple>

#include "spillway/base/error.h"

namespace spillway::plan {
namespace {

double seconds_of(const Plan& plan) noexcept {
  return plan.prediction.step_seconds;
}

/// Bytes on paths of everything but saved activations.
Bytes placed_on_paths(const Plan& plan) {
  const auto spilled = plan.path_breakdown.find(traits(ObjectKind::saved).name);
  return plan.path_bytes - (spilled == plan.path_breakdown.end() ? 0 : spilled->second);
}

std::string count(std::size_t number, const char* noun) {
  return text(number, " ", noun, number == 1 ? "" : "s");
}

/// The value of the axis, in words.
std::string describe(Axis axis, const Decisions& decisions) {
  const auto& blocks = decisions.blocks;
  const auto& layers = decisions.layers;
  if (axis == Axis::device_changes) return decisions.applies_changes ? "take changes" : "are sent again";
  if (axis == Axis::process_weights) return decisions.own_weights ? "each keeps its own" : "each keeps all";
  if (axis == Axis::device_blocks) {
    const auto more = blocks.device_updated > 0 ? text(", ", blocks.device_updated, " more updated there") : "";
    return text(count(blocks.device_resident, "block"), " resident", more);
  }
  const auto* where = layers.home.in_memory() ? " spilled to memory" : " spilled to paths";
  const auto spilled = layers.spill > 0 ? text(", ", layers.spill, where) : "";
  return text(count(layers.keep, "layer"), " kept", spilled);
}

bool is_same_value(Axis axis, const Decisions& one, const Decisions& other) {
  return axis == Axis::device_blocks       ? one.blocks == other.blocks
         : axis == Axis::saved_activations ? one.layers == other.layers
         : axis == Axis::device_changes    ? one.applies_changes == other.applies_changes
                                           : one.own_weights == other.own_weights;
}

/// The value, and those of the other axes that are not the chosen ones.
std::string describe_beside(const Compared& it, const Decisions& chosen) {
  std::string others;
  for (const auto axis : {Axis::device_blocks, Axis::saved_activations, Axis::device_changes, Axis::process_weights}) {
    if (axis == it.axis || is_same_value(axis, it.decisions, chosen)) continue;
    others += (others.empty() ? "" : "; ") + describe(axis, it.decisions);
  }
  return it.value + (others.empty() ? "" : text(" (", others, ")"));
}

}  // namespace

Bytes moved_by(const Plan& plan) noexcept {
  return plan.read_per_step + plan.written_per_step + plan.to_device_per_step + plan.from_device_per_step;
}

double priced_seconds(const Plan& plan) noexcept {
  const bool writes = !plan.spilling.empty() && !plan.decisions.layers.home.in_memory();
  return seconds_of(plan) / (writes ? kWorthWriting : 1);
}

std::optional<double> Comparison::add(Axis axis, const Decisions& decisions) {
  const auto it = outcome(decisions);
  const bool is_listed = std::ranges::any_of(
      listed_, [&](const Compared& other) { return other.axis == axis && other.decisions == decisions; });
  if (!is_listed) listed_.push_back({axis, describe(axis, decisions), decisions, it.fits, it.step_seconds, it.moved});
  return it.seconds();
}

const Comparison::Outcome& Comparison::outcome(const Decisions& decisions) {
  const auto it = std::ranges::find(outcomes_, decisions, &Outcome::decisions);
  return it != outcomes_.end() ? *it : outcomes_.emplace_back(make(decisions));
}

Comparison::Outcome Comparison::make(const Decisions& decisions) {
  try {
    auto plan = make_(decisions);
    ample_ = ample_ && plan.ample;
    has_changes_ = has_changes_ ||
                   std::ranges::any_of(plan.schedule.changes, [](const auto& change) { return change.weight.any(); });
    if (!needs_no_path(plan, decisions)) return {.decisions = decisions};
    const Outcome out{decisions, true, seconds_of(plan), moved_by(plan)};
    plans_.push_back(std::move(plan));
    const auto limit = kAsFast * priced_seconds(fastest());
    std::erase_if(plans_, [&](const Plan& it) { return priced_seconds(it) > limit; });
    return out;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
    const bool device = dynamic_cast<const NoRoomOnDevice*>(&error) != nullptr;
    ample_ = ample_ && device;
    device_alone_ = device_alone_ && device;
    if (decisions.own_weights == start_.own_weights) refusal_ = error;
    return {.decisions = decisions};
  }
}

/// Objects that fit in memory while all layers recompute stay there. They do not go to a path to let some layers keep.
bool Comparison::needs_no_path(const Plan& plan, const Decisions& decisions) {
  if (decisions.layers == SavedLayers{}) {
    all_in_memory_ = all_in_memory_ || plan.path_bytes == 0;
    return true;
  }
  return !all_in_memory_ || placed_on_paths(plan) == 0;
}

double Comparison::fastest_seconds() const {
  return any() ? seconds_of(fastest()) : std::numeric_limits<double>::infinity();
}

const Plan& Comparison::fastest() const {
  return *std::ranges::min_element(plans_, {}, priced_seconds);
}

const Plan& Comparison::best() const {
  const auto& layers = fastest().decisions.layers;
  return *std::ranges::min_element(plans_, {}, [&](const Plan& it) {
    return std::tuple(it.decisions.layers != layers, moved_by(it), seconds_of(it));
  });
}

const Plan* Comparison::find(const Decisions& decisions) const {
  const auto it = std::ranges::find(plans_, decisions, &Plan::decisions);
  return it == plans_.end() ? nullptr : &*it;
}

void Comparison::refuse() const {
  if (device_alone_) throw NoRoomOnDevice(refusal_->what());
  throw Error(*refusal_);
}

Plan Comparison::take() && {
  auto out = std::move(plans_[static_cast<std::size_t>(&best() - plans_.data())]);
  if (!has_changes_) {  // without a copy both values are one plan
    std::erase_if(listed_, [](const Compared& it) { return it.axis == Axis::device_changes; });
  }
  for (std::size_t axis = 0; axis < kAxes.size(); ++axis) {
    const bool is_listed =
        std::ranges::any_of(listed_, [&](const auto& it) { return it.axis == static_cast<Axis>(axis); });
    if (is_listed) add(static_cast<Axis>(axis), out.decisions);
  }
  for (auto& it : listed_) {
    it.chosen = it.decisions == out.decisions;
    it.value = describe_beside(it, out.decisions);
  }
  listed_.insert(listed_.end(), std::move_iterator(out.compared.begin()), std::move_iterator(out.compared.end()));
  out.compared = std::move(listed_);
  out.ample = ample_;
  return out;
}

}  // namespace spillway::plan
