// Hops: how objects get from one tier to the next. Each hop has the host at one end; other ways take two hops.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "spillway/plan/coalesced.h"
#include "spillway/plan/step/graph.h"

namespace spillway::plan::step {

// Operations of a hop, one after the other. A world has those between its machines, inside them, or both (routes.h).
inline constexpr std::array kTransfers{Op::transfer};
inline constexpr std::array kGathers{Op::gather, Op::local_gather};
inline constexpr std::array kScatters{Op::local_scatter, Op::scatter};

/// A hop, and how far from a pass or an update it reaches: what comes is in its window from that position on, what
/// leaves lies where it was made up to it. Null: it goes to no update.
struct Hop {
  TierKind from, to;
  Lane lane;
  std::span<const Op> legs;
  std::uint32_t (StepOrder::*around_pass)(Index pass) const;
  std::uint32_t (StepOrder::*around_update)(Index chunk) const;
  bool coalesces;  ///< neighbours go together, so that transfers are few and large; between processes all of a pass
};

inline constexpr std::array<Hop, 6> kHops = {{
    {TierKind::storage, TierKind::host, Lane::read, kTransfers, &StepOrder::before_backward,
     &StepOrder::state_before_update, false},
    {TierKind::host, TierKind::device, Lane::to_device, kTransfers, &StepOrder::device_before,
     &StepOrder::device_before_update, true},
    {TierKind::device, TierKind::host, Lane::from_device, kTransfers, &StepOrder::device_after,
     &StepOrder::device_after_update, true},
    {TierKind::host, TierKind::storage, Lane::write, kTransfers, &StepOrder::after_forward, &StepOrder::after_update,
     false},
    {TierKind::peer, TierKind::host, Lane::network, kGathers, &StepOrder::before_gather, nullptr, true},
    {TierKind::host, TierKind::peer, Lane::network, kScatters, &StepOrder::after_scatter, nullptr, true},
}};
/// The position that the hop reaches around a pass, and around the update of a chunk.
[[nodiscard]] std::uint32_t around_pass(const StepGraph& graph, const Hop& hop, Index pass);
[[nodiscard]] std::uint32_t around_update(const StepGraph& graph, const Hop& hop, Index chunk);
/// Position from which a window on the host may be filled once more for a pass, from paths and by other processes.
[[nodiscard]] std::uint32_t window_begin(const StepGraph& graph, Index pass);
/// The one hop between two tiers of which the host has one.
[[nodiscard]] const Hop& hop_between(TierKind from, TierKind to);
/// The hops from one tier to another, in their order.
[[nodiscard]] std::vector<Hop> hops_between(TierKind from, TierKind to);
/// Parts of `chunks`, in order, that each are one transfer of the hop. `separate`: as coalesce() has it.
[[nodiscard]] std::vector<Coalesced> parts_of(const StepGraph& graph, const Hop& hop, Range chunks,
                                              const ChunkBytes& bytes, const Separate& separate = {});
/// The hop the other way.
[[nodiscard]] const Hop& back_of(const Hop& hop);

/// Bytes of a transfer, their source and their destination. A transfer takes the last hop between these: from a device
/// to a path a copy goes before.
struct Move {
  Object what;
  Place from, to;
  Bytes bytes;
};

/// The task alone, which follows nothing and lets nothing follow.
Index add_transfer(StepGraph& graph, Phase phase, const Move& move, std::uint32_t deadline);
/// A hop of an object that leaves one buffer for another: it fills the one, and the other may be let go. What is in use
/// at every position stays.
Index add_hop(StepGraph& graph, Phase phase, const Move& move, std::uint32_t deadline);

/// To where a pass reads it: the pass waits for it, before it begins unless it asks for it while it runs. Copies that
/// stay there come again only where they have changed.
Index bring_to_pass(StepGraph& graph, const Move& move, Index pass, bool asks = false);
/// From where a pass has made it.
Index take_from_pass(StepGraph& graph, const Move& move, Index pass);

/// Bytes that go between this process and others.
struct Moved {
  Bytes sent = 0, received = 0;

  void add(bool sends, Bytes bytes) { (sends ? sent : received) += bytes; }
  /// The bytes of an object that `owner` has, in the directions that a leg moves them.
  void add(Op leg, const state::World& world, std::size_t owner, Bytes bytes);
};
/// Adds up what a leg moves.
using CountMoved = std::function<void(Op leg, Moved& moved)>;
/// A movement between processes: a task for each leg of the hop that the world has. `task` has what all of them share.
Legs add_legs(StepGraph& graph, const Hop& hop, const Task& task, const CountMoved& count);

}  // namespace spillway::plan::step
