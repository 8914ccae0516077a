// The search over placements and lookaheads, by simulating what has room.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "spillway/plan/device_choice.h"
#include "spillway/plan/fitting.h"

namespace spillway::plan {

/// Lookahead of a level, with copies to and from a device so many passes ahead. Level 0 is the least that works: a
/// block's gradient has left before the next is made. Each level keeps more chunks in flight.
[[nodiscard]] Lookahead lookahead_at(const Problem& problem, std::uint32_t level, std::uint32_t device_ahead);

/// Residents of the budget's device, if it has one, beside the blocks that the problem's decisions name. `spare`: as
/// DeviceChoice's. Throws Error(does_not_fit).
[[nodiscard]] DeviceChoice choose_device(const Problem& problem, Bytes spare = 0);
/// Blocks that have room to live on that device.
[[nodiscard]] std::size_t most_device_resident(const Problem& problem);
/// A share of so many; none: 0.
[[nodiscard]] std::size_t share_of(const std::optional<double>& share, std::size_t all) noexcept;
/// Blocks that the budget asks to live there and to be updated there.
[[nodiscard]] UpdatedThere read_requested_updates(const Problem& problem);
/// The decisions that the budget asks for, from which a search starts: all layers recompute.
[[nodiscard]] Decisions read_requested_decisions(const Problem& problem);

/// Bytes of the smallest arena that what the caller placed allows.
[[nodiscard]] Bytes smallest_arena(const Problem& problem);

/// True if something has to lie on a path: the caller placed it there, or not all of the rest fits in DRAM. False says
/// nothing.
[[nodiscard]] bool spills(const Problem& problem);

/// Result of a search.
struct Found {
  LaidOut laid_out;
  double early_saves = 0;  ///< seconds of a step
  bool ample = false;      ///< whatever was tried had room
  std::vector<Compared> compared = {};
};

/// The axes of the inner decisions (fitting.h), in the order of the search.
[[nodiscard]] std::span<const FittingSearch::Row> fitting_rows() noexcept;

/// For each lookahead the most that can stay; of these the fastest, and of equals the one that moves least. With
/// several NUMA nodes the fastest way to distribute what stays to them, of which a later one is worth it from a percent
/// on. Early updates are added then, and what is left lengthens the lookahead. None when nothing fits.
[[nodiscard]] std::optional<Found> search(const Problem& problem, const Units& units, const Room& room,
                                          std::uint32_t device_ahead);

}  // namespace spillway::plan
