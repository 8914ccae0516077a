// Offsets from lifetimes: buffers that are never in use together share bytes.
#pragma once

#include "spillway/plan/schedule.h"

namespace spillway::plan {

/// Gives every buffer of a tier an offset (a multiple of 4096) so that buffers that live at the same position never
/// overlap; returns the bytes of that arena. First fit by falling size; lifetimes may wrap around the step. Above what
/// is in use at every position lies what comes and goes on later tiers of host memory, tier by tier, and above that
/// what comes and goes on the first.
[[nodiscard]] Bytes lay_out(Schedule& schedule, TierKind tier = TierKind::host);

/// End of the host's buffers in use at every position, which lie at the bottom of its arena.
[[nodiscard]] Bytes resident_bytes(const Schedule& schedule);

/// First and last byte of the transient buffers on a tier of host memory, after lay_out(). Both are 0 without any.
struct MovingRange {
  Bytes begin = 0, end = 0;

  [[nodiscard]] Bytes bytes() const noexcept { return end - begin; }
};
[[nodiscard]] MovingRange moving_range(const Schedule& schedule, std::uint16_t node);

/// The largest Buffer::node of a schedule.
[[nodiscard]] std::uint16_t last_node(const Schedule& schedule);
/// Bytes that the buffers which name a later tier of host memory take there.
[[nodiscard]] Bytes bytes_on(const Schedule& schedule, std::uint16_t node);
/// Bytes of what comes and goes on all of these tiers together.
[[nodiscard]] Bytes bytes_moving_later(const Schedule& schedule);

/// Adds the dependencies that sharing bytes needs: who fills a buffer waits for those who let go of its bytes last.
void add_reuse_dependencies(Schedule& schedule);

/// Largest sum of bytes of the host's buffers alive at one position: no layout can be smaller.
[[nodiscard]] Bytes live_peak(const Schedule& schedule);

}  // namespace spillway::plan
