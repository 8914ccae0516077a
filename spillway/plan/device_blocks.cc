#include "spillway/plan/device_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "spillway/base/error.h"
#include "spillway/plan/if_it_fits.h"

namespace spillway::plan {
namespace {

/// Steps that take at most this much longer than the fastest are as fast.
constexpr double kAsFast = 1.01;
/// A step that takes so many times as long as one with more blocks there says that still fewer are no faster either.
constexpr double kSlower = 1.05;
/// Of the blocks that may pass, the part that is tried where all of them make no faster step.
constexpr std::size_t kFew = 8;

Bytes moved(const Plan& plan) {
  return plan.read_per_step + plan.written_per_step + plan.to_device_per_step + plan.from_device_per_step;
}

/// "0.123 s"
std::string seconds(double value) {
  return text(std::round(value * 1e3) / 1e3, " s");
}

/// Plans that were made, and what they came to.
class Tried {
 public:
  explicit Tried(const PlanThere& plan) : plan_(plan) {}

  /// Seconds of a step; none: it does not fit.
  std::optional<double> add(UpdatedThere there) {
    try {
      found_.push_back(plan_(there));
      tried_.push_back(
          {there.device_resident, found_.back().device_updated, true, time(found_.back()), moved(found_.back())});
      return time(found_.back());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::does_not_fit) throw;
      refused_ = error;
      ample_ = ample_ && dynamic_cast<const NoRoomOnDevice*>(&error) != nullptr;
      tried_.push_back({.blocks = there.device_resident, .device_updated = there.device_updated});
      return std::nullopt;
    }
  }

  /// All of so many others pass, half of them, and so on while that is faster. Where a step takes more than `limit`
  /// seconds with all of them, and with `few` of them, too (0: these are not tried), none between is tried.
  void add_device_updated(std::size_t device_resident, std::size_t others, double limit, std::size_t few) {
    if (others == 0) return;
    auto before = add({device_resident, others});
    const bool slower = before.value_or(0) > limit;
    if (slower) {
      const auto now = few > 0 && few < others ? add({device_resident, few}) : before;
      if (now.value_or(0) > limit) return;
    }
    for (auto device_updated = others / 2; device_updated > (slower ? few : 0); device_updated /= 2) {
      const auto now = add({device_resident, device_updated});
      if (before && now && *now > *before) return;
      before = now;
    }
  }

  /// Of the fastest step; while none fits, without end.
  [[nodiscard]] double seconds() const {
    auto out = std::numeric_limits<double>::infinity();
    for (const auto& plan : found_) out = std::min(out, time(plan));
    return out;
  }
  /// The fastest; of those within a percent of it the one that moves least. Throws when none fits.
  [[nodiscard]] Plan& best() {
    if (found_.empty() && ample_) throw NoRoomOnDevice(refused_->what());
    if (found_.empty()) throw Error(*refused_);
    const auto fastest = seconds();
    return *std::ranges::min_element(found_, {}, [&](const Plan& it) {
      return time(it) <= kAsFast * fastest ? std::pair(0.0, moved(it)) : std::pair(time(it), moved(it));
    });
  }

  [[nodiscard]] Plan take() {
    auto out = std::move(best());
    out.ample = ample_ && std::ranges::all_of(found_, &Plan::ample);
    out.device_blocks_tried = std::move(tried_);
    return out;
  }

 private:
  static double time(const Plan& it) { return it.prediction.step_seconds; }

  const PlanThere& plan_;
  std::vector<Plan> found_;
  std::vector<DeviceBlocksTried> tried_;
  std::optional<Error> refused_;
  bool ample_ = true;  ///< host memory refused nothing
};

/// Whether passes alone take less than the step: else no other place for an update makes it faster.
bool may_gain(const Plan& plan) {
  return plan.prediction.step_seconds > kAsFast * plan.prediction.compute_seconds;
}

}  // namespace

Plan choose_there(const PlanThere& plan, std::size_t most, std::optional<std::size_t> blocks) {
  Tried tried(plan);
  for (auto device_resident = most;; device_resident /= 2) {
    const auto best = tried.seconds();
    const auto now = tried.add({.device_resident = device_resident});
    if (device_resident == 0 || now.value_or(0) > kSlower * best) break;
  }
  if (blocks && may_gain(tried.best())) {
    const auto& best = tried.best();
    const auto device_resident = best.device_resident, others = *blocks - device_resident;
    // Paths move no less when updates are elsewhere: where these bound the step, few are tried.
    const bool paths = best.prediction.transfer_seconds > best.prediction.update_seconds;
    const auto limit = paths ? tried.seconds() : std::numeric_limits<double>::infinity();
    tried.add_device_updated(device_resident, others, limit, std::max<std::size_t>(1, others / kFew));
    // States that live there take the room that others pass through.
    if (device_resident > 0) tried.add_device_updated(0, *blocks, tried.seconds(), 0);
  }
  return tried.take();
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
    ++(it.device_resident()  ? out.device_resident
       : it.device_updated() ? out.device_updated
       : it.weight_copy      ? out.weights
                             : out.streamed);
  }
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
  if (plan.device_blocks_tried.empty()) {
    const auto others =
        plan.device_updated > 0 ? text(", and the states of ", plan.device_updated, " to come for their updates") : "";
    return text(plan.device_resident, " blocks were asked to live on the device", others);
  }
  auto out =
      text("fastest of those compared, in blocks that live on the device and, after +, whose states come for the ",
           "update there:");
  const char* comma = " ";
  for (const auto& it : plan.device_blocks_tried) {
    out += text(comma, it.blocks, it.device_updated > 0 ? text(" + ", it.device_updated) : "",
                it.fits ? text(" in ", seconds(it.step_seconds)) : text(" do not fit"));
    comma = ", ";
  }
  return out;
}

}  // namespace spillway::plan
