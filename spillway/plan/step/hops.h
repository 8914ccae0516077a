// Hops: how objects get from one tier to the next. A way between storage and a device takes two, by the host.
#pragma once

#include <array>
#include <vector>

#include "spillway/plan/coalesced.h"
#include "spillway/plan/step/graph.h"

namespace spillway::plan::step {

/// A hop, and how far from a pass or an update it reaches: what comes is in its window from that position on, what
/// leaves lies where it was made up to it.
struct Hop {
  TierKind from, to;
  Lane lane;
  std::uint32_t (StepOrder::*around_pass)(Index pass) const;
  std::uint32_t (StepOrder::*around_update)(Index chunk) const;
  bool coalesces;  ///< neighbours go together, so that transfers are few and large
};

inline constexpr std::array<Hop, 4> kHops = {{
    {TierKind::storage, TierKind::host, Lane::read, &StepOrder::before_backward, &StepOrder::state_before_update,
     false},
    {TierKind::host, TierKind::device, Lane::to_device, &StepOrder::device_before, &StepOrder::device_before_update,
     true},
    {TierKind::device, TierKind::host, Lane::from_device, &StepOrder::device_after, &StepOrder::device_after_update,
     true},
    {TierKind::host, TierKind::storage, Lane::write, &StepOrder::after_forward, &StepOrder::after_update, false},
}};
/// The position that the hop by a lane reaches around a pass, and around the update of a chunk.
[[nodiscard]] std::uint32_t around_pass(const StepGraph& graph, Lane lane, Index pass);
[[nodiscard]] std::uint32_t around_update(const StepGraph& graph, Lane lane, Index chunk);
/// The one hop between two tiers of which the host has one.
[[nodiscard]] const Hop& hop_between(TierKind from, TierKind to);
/// The hops from one tier to another, in their order.
[[nodiscard]] std::vector<Hop> hops_between(TierKind from, TierKind to);
/// Parts of `chunks`, in order, that each are one transfer of the hop. `separate`: as coalesce() has it.
[[nodiscard]] std::vector<Coalesced> parts_of(const StepGraph& graph, const Hop& hop, Range chunks,
                                              const ChunkBytes& bytes, const Separate& separate = {});
/// The hop the other way.
[[nodiscard]] const Hop& back_of(const Hop& hop);

/// Bytes of a transfer, their source and their destination.
struct Move {
  Object what;
  Place from, to;
  Bytes bytes;
};

/// The task alone, which follows nothing and lets nothing follow.
Index add_transfer(StepGraph& graph, Lane lane, Phase phase, const Move& move, std::uint32_t deadline);
/// A hop of an object that leaves one buffer for another: it fills the one, and the other may be let go. What is in use
/// at every position stays.
Index add_hop(StepGraph& graph, Lane lane, Phase phase, const Move& move, std::uint32_t deadline);

/// To where a pass reads it: the pass waits for it, before it begins unless it asks for it while it runs. Copies that
/// stay there come again only where they have changed.
Index bring_to_pass(StepGraph& graph, Lane lane, const Move& move, Index pass, bool asks = false);
/// From where a pass has made it.
Index take_from_pass(StepGraph& graph, Lane lane, const Move& move, Index pass);

}  // namespace spillway::plan::step
