#include "spillway/plan/living.h"

#include <algorithm>
#include <cmath>

#include "spillway/base/error.h"

namespace spillway::plan {
namespace {

/// Steps that take at most this much longer than the fastest are as fast.
constexpr double kAsFast = 1.01;

Bytes moved(const Plan& plan) {
  return plan.read_per_step + plan.written_per_step + plan.to_device_per_step + plan.from_device_per_step;
}

/// "0.123 s"
std::string seconds(double value) {
  return text(std::round(value * 1e3) / 1e3, " s");
}

}  // namespace

Plan choose_living(const PlanWithLiving& plan, std::size_t most) {
  std::vector<Plan> found;
  std::vector<LivingTried> tried;
  std::optional<Error> refused;
  for (auto blocks = most;; blocks /= 2) {
    try {
      found.push_back(plan(blocks));
      tried.push_back({blocks, true, found.back().prediction.step_seconds, moved(found.back())});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::does_not_fit) throw;
      refused = error;
      tried.push_back({.blocks = blocks});
    }
    if (blocks == 0) break;
  }
  if (found.empty()) throw Error(*refused);
  const auto time = [](const Plan& it) { return it.prediction.step_seconds; };
  const auto fastest = time(std::ranges::min(found, {}, time));
  const auto best = std::ranges::min_element(found, {}, [&](const Plan& it) {
    return time(it) <= kAsFast * fastest ? std::pair(0.0, moved(it)) : std::pair(time(it), moved(it));
  });
  best->living_tried = std::move(tried);
  return std::move(*best);
}

std::string no_living(const Description& description, const state::Layout& layout, const Rates& rates) {
  if (auto why = no_device_update(description.rule()); !why.empty()) return why;
  if (rates.device_update <= 0) return "how fast the device updates is not known";
  const auto chunks = static_cast<Index>(layout.chunks().size());
  for (Index c = 0; c < chunks; ++c) {
    if (can_be_on_device(description, layout, c)) return {};
  }
  return "no layer has all that learns learn in full, and in bf16";
}

DeviceBlocks device_blocks(const Plan& plan, const Description& description, const state::Layout& layout) {
  DeviceBlocks out;
  if (!plan.residency.device) return out;
  const auto count = [&](Index first) {
    auto& kind = plan.residency.on_device(first)        ? out.living
                 : plan.residency.device->weight[first] ? out.weights
                                                        : out.streamed;
    ++kind;
  };
  for (const auto& block : layout.blocks()) {
    const auto first = static_cast<Index>(block.first_chunk);
    const bool head =
        block.role == state::BlockRole::head || (block.role == state::BlockRole::embedding && description.tied_head);
    if (block.role == state::BlockRole::layer) count(first);
    for (auto c = first; head && c < first + block.chunks; ++c) count(c);
  }
  for (const auto& task : plan.schedule.tasks) {
    const bool kept = task.kind == TaskKind::download_grad || task.kind == TaskKind::download_weight ||
                      task.kind == TaskKind::download_state;
    if (kept && plan.residency.on_device(task.subject)) out.durable += task.bytes / task.every;
  }
  return out;
}

std::string living_words(const Plan& plan) {
  if (!plan.living_why_not.empty()) return text("updates are on the host: ", plan.living_why_not);
  if (plan.living_tried.empty()) return text(plan.living, " blocks were asked to live on the device");
  auto out = text("fastest of those compared, in blocks that live on the device:");
  const char* comma = " ";
  for (const auto& it : plan.living_tried) {
    out += text(comma, it.blocks, it.fits ? text(" in ", seconds(it.step_seconds)) : text(" do not fit"));
    comma = ", ";
  }
  return out;
}

}  // namespace spillway::plan
