#include "spillway/plan/aside.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

namespace spillway::plan {
namespace {

/// Bytes per second; of tiers of which nothing is known all are alike.
double rate_of(const Problem& problem, std::uint16_t tier) {
  const auto& rates = problem.rates;
  const auto it = tier < rates.nodes.size() ? rates.nodes[tier] : NodeRates{};
  auto rate = it.read;
  if (problem.budget.device) {
    const auto up = it.to_device > 0 ? it.to_device : rates.to_device;
    const auto down = it.from_device > 0 ? it.from_device : rates.from_device;
    rate = up > 0 && down > 0 ? 2 / (1 / up + 1 / down) : 0;
  }
  return rate > 0 ? rate : 1;
}

class Aside {
 public:
  Aside(const Problem& problem, Placement placement, const std::vector<std::uint16_t>& tiers, std::vector<Bytes> room)
      : problem_(problem),
        placement_(std::move(placement)),
        tiers_(tiers),
        room_(std::move(room)),
        seconds_(room_.size(), 0) {}

  Placement run() {
    for (const auto& block : problem_.layout.blocks()) {
      for (const auto& range : pass_ranges(block, block.trainable_chunks)) put_gradient(range);
    }
    if (problem_.description.hidden_size > 0) put_boundaries();
    return std::move(placement_);
  }

 private:
  /// The tier at which this ends first.
  std::uint16_t give(Bytes bytes, const std::optional<std::uint16_t>& asked) {
    if (asked) return *asked;
    std::uint16_t out = 0;
    double best = std::numeric_limits<double>::infinity();
    for (const auto tier : tiers_) {
      if (tier >= room_.size() || (tier > 0 && room_[tier] < bytes)) continue;
      const auto end = seconds_[tier] + static_cast<double>(bytes) / rate_of(problem_, tier);
      if (end >= best) continue;
      best = end;
      out = tier;
    }
    if (out < room_.size()) room_[out] -= std::min(room_[out], bytes);
    if (out < room_.size()) seconds_[out] += static_cast<double>(bytes) / rate_of(problem_, out);
    return out;
  }

  void put_gradient(Range chunks) {
    auto& placed = placement_.chunks;
    if (!placed[chunks.first].gradient.on_host()) return;
    if (!has_dense_grad(problem_.description, problem_.layout, chunks.first)) return;
    Bytes bytes = 0;
    for (auto c = chunks.first; c < chunks.end(); ++c) {
      const auto& chunk = problem_.layout.chunks()[c];
      bytes += problem_.description.has(problem_.layout, chunk) ? grad_bytes(problem_.description.rule(), chunk) : 0;
    }
    if (bytes == 0) return;  // other processes have them
    const auto tier = give(bytes, problem_.budget.placement.grad_on);
    for (auto c = chunks.first; c < chunks.end(); ++c) placed[c].gradient.node = tier;
  }

  void put_boundaries() {
    const auto bytes = problem_.description.boundary_bytes();
    for (auto i = first_backward(problem_.layout); i < placement_.boundaries.size(); ++i) {
      auto& it = placement_.boundaries[i];
      if (it.on_host() && !it.has_device_copy()) it.node = give(bytes, problem_.budget.placement.activation_on);
    }
    if (!has_features(problem_.description, problem_.layout) || !placement_.features.on_host()) return;
    placement_.features.node = give(problem_.description.feature_bytes, problem_.budget.placement.activation_on);
  }

  const Problem problem_;
  Placement placement_;
  const std::vector<std::uint16_t>& tiers_;
  std::vector<Bytes> room_;
  std::vector<double> seconds_;  ///< by tier, of what was given to it
};

}  // namespace

Placement put_aside(const Problem& problem, Placement placement, const std::vector<std::uint16_t>& tiers,
                    std::vector<Bytes> room, Bytes padding) {
  for (auto& it : room) it -= std::min(it, padding);
  return Aside(problem, std::move(placement), tiers, std::move(room)).run();
}

std::vector<std::uint16_t> over_later_tiers(std::size_t nodes) {
  std::vector<std::uint16_t> out(nodes - 1);
  std::iota(out.begin(), out.end(), std::uint16_t{1});
  return out;
}

std::vector<DistributionPolicy> policies_aside(const std::vector<DistributionPolicy>& policies, std::size_t nodes) {
  if (nodes < 2) return {};
  auto out = policies;
  for (auto& policy : out) policy.aside = over_later_tiers(nodes);
  return out;
}

DistributionPolicy over_all_tiers(DistributionPolicy policy, std::size_t nodes) {
  policy.aside = over_later_tiers(nodes);
  policy.aside.insert(policy.aside.begin(), 0);
  return policy;
}

}  // namespace spillway::plan
