// Bytes that cross the link between the host and a device in a step, and their times.
#pragma once

#include <vector>

#include "spillway/plan/schedule.h"

namespace spillway::execute {

/// Offsets into the host's arena of the first and the last byte of every copy to or from a device, in the order of the
/// copies' deadlines.
[[nodiscard]] std::vector<Bytes> crossing_offsets(const plan::Schedule& schedule);

}  // namespace spillway::execute
