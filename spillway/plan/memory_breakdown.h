// Who holds the arena.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "spillway/plan/schedule.h"

namespace spillway::plan {

/// "activation": as breakdowns call the class.
[[nodiscard]] const char* name_of(BufferClass kind) noexcept;

/// Bytes by class of buffer of a tier at the position where most are in use, and "gaps" between them; sums to `arena`.
/// In host memory `node` is the tier of it whose buffers are counted (Buffer::node).
[[nodiscard]] std::map<std::string, Bytes> memory_breakdown(const Schedule& schedule, Bytes arena,
                                                            TierKind tier = TierKind::host, std::uint16_t node = 0);
/// The breakdown of all of host memory, each of its tiers where it is at its fullest.
[[nodiscard]] std::map<std::string, Bytes> host_breakdown(const Schedule& schedule, Bytes arena);

/// The host's breakdown at every position of the step, without gaps.
[[nodiscard]] std::vector<std::map<std::string, Bytes>> breakdown_by_position(const Schedule& schedule);

}  // namespace spillway::plan
