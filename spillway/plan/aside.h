// Which tiers of host memory gradients and boundary activations lie on, where they stay in memory.
//
// Each of them is written once and read once or twice in a step, in whole layers and long before anything waits for it,
// so a slower tier costs less with them than with states (the latency-tolerant class of arXiv 2507.03305). So they
// leave the first tier where that makes room which it has not: objects are distributed in proportion to the rates at
// which tiers are read, or copied from and to by a device, so that each tier is busy for as long as the others.
#pragma once

#include <vector>

#include "spillway/plan/nodes.h"
#include "spillway/plan/problem.h"

namespace spillway::plan {

/// Puts each gradient and boundary activation that stays in host memory on one of `tiers`, indices into Budget::nodes,
/// while that has room for it in `room`, bytes by tier of which `padding` stays free (the first bounds nothing here),
/// and else on the first. Without `tiers` all of them lie on the first. What the budget asks to lie on one tier lies
/// there. The gradients of a layer lie together.
[[nodiscard]] Placement put_aside(const Problem& problem, Placement placement, const std::vector<std::uint16_t>& tiers,
                                  std::vector<Bytes> room, Bytes padding = 0);

/// The later of so many tiers, which are at least one.
[[nodiscard]] std::vector<std::uint16_t> over_later_tiers(std::size_t nodes);
/// The policies that have gradients and boundary activations on all later tiers, and chunks as `policies` say; none
/// where there are fewer than two tiers.
[[nodiscard]] std::vector<DistributionPolicy> policies_aside(const std::vector<DistributionPolicy>& policies,
                                                             std::size_t nodes);
/// That policy, with them on all tiers.
[[nodiscard]] DistributionPolicy over_all_tiers(DistributionPolicy policy, std::size_t nodes);

}  // namespace spillway::plan
