// How long a pass computes, from what was measured of passes and from where lies what it reads and leaves.
#pragma once

#include "spillway/plan/description.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"

namespace spillway::plan {

/// Seconds of pass number `pass` at the largest step.
[[nodiscard]] double pass_seconds(const Schedule& schedule, const state::Layout& layout, const Rates& rates,
                                  Index pass);

/// Seconds that a pass takes at least because weights that it reads in place lie on other nodes than the first.
[[nodiscard]] double weight_seconds(const Schedule& schedule, const Description& description,
                                    const state::Layout& layout, const Rates& rates, Index pass);

}  // namespace spillway::plan
