// Offsets from lifetimes: buffers that are never in use together share bytes.
#pragma once

#include "spillway/plan/schedule.h"

namespace spillway::plan {

/// Gives every buffer of a tier an offset (a multiple of 4096) so that buffers that live at the same position never
/// overlap; returns the bytes of that arena. First fit by falling size; lifetimes may wrap around the step.
[[nodiscard]] Bytes lay_out(Schedule& schedule, TierKind tier = TierKind::host);

/// End of the buffers in use at every position, which lie at the bottom of the arena.
[[nodiscard]] Bytes resident_bytes(const Schedule& schedule, TierKind tier = TierKind::host);

/// Adds the dependencies that sharing bytes needs: who fills a buffer waits for those who let go of its bytes last.
void add_reuse_dependencies(Schedule& schedule);

/// Largest sum of bytes of buffers alive at one position: no layout can be smaller.
[[nodiscard]] Bytes live_peak(const Schedule& schedule, TierKind tier = TierKind::host);

}  // namespace spillway::plan
