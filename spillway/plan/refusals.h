// Messages for plans that do not fit.
#pragma once

#include "spillway/plan/search.h"

namespace spillway::plan {

/// Throws Error(does_not_fit) with what the smallest plan of this placement takes of host memory, what there is, and
/// the settings that would fit, of which the numbers are those of plans that were laid out.
[[noreturn]] void refuse(const Problem& problem, const Units& units, const Room& room, std::uint32_t device_ahead);

}  // namespace spillway::plan
