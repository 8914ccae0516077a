// Objects of a model that can stay in DRAM, unit by unit, and the units among which the planner may choose.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "spillway/plan/problem.h"

namespace spillway::plan {

/// Kinds of objects that lie together.
enum class Group : std::uint8_t { weight, activation, grad, state };

struct GroupTraits {
  std::optional<double> PlacementShares::*share;  ///< of it that the caller placed in DRAM; empty: the planner decides
  Residence ChunkPlacement::*home;                ///< null: of a boundary
  Bytes (*bytes)(const state::UpdateRule& rule, const state::Chunk& chunk);  ///< null: a boundary's
};

inline constexpr std::array<GroupTraits, 4> kGroups = {{
    {&PlacementShares::weight, &ChunkPlacement::weight, state::weight_bytes},
    {&PlacementShares::activation, nullptr, nullptr},
    {&PlacementShares::grad, &ChunkPlacement::gradient, state::grad_bytes},
    {&PlacementShares::state, &ChunkPlacement::state, state::state_bytes},
}};

[[nodiscard]] constexpr const GroupTraits& traits(Group group) noexcept {
  return kGroups[static_cast<std::size_t>(group)];
}

/// Smallest set that becomes resident: a layer's weights or gradients, one slice of a table, one boundary activation,
/// the features of all images, one chunk's state.
struct Unit {
  Group group = Group::weight;
  Index first = 0;  ///< chunk; boundary for activations, and their number for features of images
  Index count = 1;
  Bytes bytes = 0;
  Bytes all = 0;  ///< the same, with what other processes keep of weights: what a share of them is of
};

/// Order in which weights take the near places, ascending. Weights that more steps ask for come first. Of pieces that
/// as many steps ask for, the first of each tensor come before the second, so that all layers have as many near ones.
[[nodiscard]] std::pair<double, std::uint64_t> demand_order(const state::Layout& layout, Index chunk);

/// The least that the host keeps beside `device`, what stays on a device: what there is none of.
[[nodiscard]] Placement least_placement(const Problem& problem, Placement device);

/// Objects that can stay, beside those that the caller fixed in Budget::placement; without a path everything is fixed
/// to stay. Units are listed by group, most traffic saved per byte first: weights, activations, gradients, states;
/// among weights by demand_order(). A logged gradient is written wherever it stays, so states come before
/// gradients if gradients are logged.
class Units {
 public:
  explicit Units(const Problem& problem) : Units(problem, Placement(problem.layout)) {}
  /// Beside `device`, what stays on a device.
  Units(const Problem& problem, Placement device);

  [[nodiscard]] std::size_t free() const noexcept { return free_.size(); }  ///< units that the planner may keep
  /// The placement of the fixed units and the first `free` units that the planner may keep.
  [[nodiscard]] Placement place(std::size_t free) const;
  /// Bytes of what is fixed and of the first so many; and about how many have room in so many bytes.
  [[nodiscard]] Bytes bytes(std::size_t free) const;
  [[nodiscard]] std::size_t about(Bytes room) const;
  /// Units of weights that `placement` has in host memory.
  [[nodiscard]] std::size_t resident_weights(const Placement& placement) const;
  /// True if nothing of it lies on a path.
  [[nodiscard]] bool all_stay(const Placement& placement) const;

 private:
  void list(Group group);
  void list_block(Group group, const state::Block& block);
  void list_range(Group group, Range chunks);
  void sort_weights();
  void fix();
  [[nodiscard]] std::optional<std::size_t> fixed_units(Group group) const;
  [[nodiscard]] Bytes bytes_of(Group group, Index chunk) const;
  [[nodiscard]] bool elsewhere(Group group, Index chunk) const;

  const Problem problem_;
  Placement fixed_;
  Bytes fixed_bytes_ = 0;
  std::vector<Unit> units_;
  std::vector<std::size_t> free_;  ///< indices into `units_`
};

}  // namespace spillway::plan
