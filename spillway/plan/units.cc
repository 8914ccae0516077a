#include "spillway/plan/units.h"

#include <algorithm>
#include <array>
#include <utility>

namespace spillway::plan {
namespace {

/// Home of the group's object of a chunk, or of that boundary; behind the last one come features of images.
template <class Residencies>
auto& home_of(Residencies& placement, Group group, Index i) {
  const auto home = traits(group).home;
  if (home != nullptr) return placement.chunks[i].*home;
  return i < placement.boundaries.size() ? placement.boundaries[i] : placement.features;
}

void keep(Placement& placement, const Unit& unit) {
  for (auto i = unit.first; i < unit.first + unit.count; ++i) home_of(placement, unit.group, i).keep();
}

std::array<Group, 4> groups(const Problem& problem) {
  if (problem.redo().gradients) return {Group::weight, Group::activation, Group::state, Group::grad};
  return {Group::weight, Group::activation, Group::grad, Group::state};
}

}  // namespace

std::pair<double, std::uint64_t> demand_order(const state::Layout& layout, Index chunk) {
  const auto asked = layout.chunks()[chunk].asked;
  if (asked >= 1) return {-asked, 0};
  const auto& span = layout.spans(chunk).front();
  return {-asked, span.tensor_first / layout.tensors()[span.tensor].piece()};
}

Placement least_placement(const Problem& problem, Placement device) {
  const auto& chunks = problem.layout.chunks();
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const bool mine = problem.description.has(problem.layout, chunks[c]);
    if (!mine || !has_state(chunks[c].training)) device.chunks[c].state.keep();
    if (!mine || !has_gradient(chunks[c].training)) device.chunks[c].gradient.keep();
  }
  if (problem.description.is_shared())
    keep_own_weights(problem.description, problem.layout, device, problem.decisions.own_weights);
  for (Index i = 0; i < first_backward(problem.layout); ++i) device.boundaries[i].keep();
  if (!has_features(problem.description, problem.layout)) device.features.keep();
  return device;
}

Units::Units(const Problem& problem, Placement device)
    : problem_(problem), fixed_(least_placement(problem, std::move(device))) {
  for (const auto group : groups(problem)) list(group);
  sort_weights();
  fix();
}

void Units::list(Group group) {
  if (group != Group::activation) {
    for (const auto& block : problem_.layout.blocks()) list_block(group, block);
    return;
  }
  const auto bytes = problem_.description.boundary_bytes();
  for (auto i = first_backward(problem_.layout); i < fixed_.boundaries.size(); ++i) {
    units_.push_back({group, i, 1, bytes, bytes});
  }
  if (!has_features(problem_.description, problem_.layout)) return;
  const auto features = problem_.description.feature_bytes;
  units_.push_back({group, static_cast<Index>(fixed_.boundaries.size()), 1, features, features});
}

void Units::list_block(Group group, const state::Block& block) {
  const auto& layout = problem_.layout;
  const bool weights = group == Group::weight;
  for (const auto& range : weights ? weight_objects(layout, block) : pass_ranges(block, block.trainable_chunks)) {
    if (group == Group::grad && !has_dense_grad(problem_.description, problem_.layout, range.first)) continue;
    if (group != Group::state) list_range(group, range);
    for (auto c = range.first; group == Group::state && c < range.end(); ++c) list_range(group, {c, 1});
  }
}

/// Memory saves more traffic, byte for byte, where more steps ask for a weight.
void Units::sort_weights() {
  const auto end = std::ranges::find_if(units_, [](const Unit& unit) { return unit.group != Group::weight; });
  const auto order = [&](const Unit& unit) { return demand_order(problem_.layout, unit.first); };
  std::ranges::stable_sort(units_.begin(), end, {}, order);
}

/// Lists all of the weights; of the other groups the range from the first to the last chunk that this process has.
void Units::list_range(Group group, Range chunks) {
  if (elsewhere(group, chunks.first)) return;
  Range own;
  Bytes all = 0, mine = 0;
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    all += bytes_of(group, c);
    if (!problem_.description.has(problem_.layout, problem_.layout.chunks()[c])) continue;
    mine += bytes_of(group, c);
    if (own.count == 0) own.first = c;
    own.count = c + 1 - own.first;
  }
  if (group == Group::weight) {
    const bool is_own = fixed_[chunks.first].weight.owner == Owner::one;
    units_.push_back({group, chunks.first, chunks.count, is_own ? mine : all, all});
  } else if (own.count > 0) {
    units_.push_back({group, own.first, own.count, mine, mine});
  }
}

Bytes Units::bytes_of(Group group, Index chunk) const {
  return traits(group).bytes(problem_.description.rule(), problem_.layout.chunks()[chunk]);
}

/// On a device, and nowhere on the host.
bool Units::elsewhere(Group group, Index chunk) const {
  return group == Group::grad ? fixed_[chunk].gradient_there() : fixed_[chunk].device_resident();
}

void Units::fix() {
  for (const auto group : groups(problem_)) {
    const auto fixed = fixed_units(group);
    std::size_t number = 0;  // within the group
    for (std::size_t i = 0; i < units_.size(); ++i) {
      const auto& unit = units_[i];
      if (unit.group != group) continue;
      if (!fixed) {
        free_.push_back(i);
      } else if (number++ < *fixed) {
        keep(fixed_, unit);
        fixed_bytes_ += unit.bytes;
      }
    }
  }
}

/// Units of the group that stay by request or by decision; none: the search chooses.
std::optional<std::size_t> Units::fixed_units(Group group) const {
  const auto& budget = problem_.budget;
  const auto share = budget.has_path() ? budget.placement.*traits(group).share : 1.0;
  if (!share) return group == Group::weight ? problem_.decisions.host_weights : std::nullopt;
  Bytes total = 0, kept = 0;
  for (const auto& unit : units_) total += unit.group == group ? unit.all : 0;
  std::size_t out = 0;
  for (const auto& unit : units_) {
    if (unit.group != group) continue;
    if (static_cast<double>(kept) >= *share * static_cast<double>(total) - 0.5) break;
    kept += unit.all;
    ++out;
  }
  return out;
}

Placement Units::place(std::size_t free) const {
  auto out = fixed_;
  for (std::size_t i = 0; i < free; ++i) keep(out, units_[free_[i]]);
  return out;
}

Bytes Units::bytes(std::size_t free) const {
  auto out = fixed_bytes_;
  for (std::size_t i = 0; i < free; ++i) out += units_[free_[i]].bytes;
  return out;
}

std::size_t Units::about(Bytes room) const {
  std::size_t out = 0;
  for (auto taken = fixed_bytes_; out < free_.size(); ++out) {
    taken += units_[free_[out]].bytes;
    if (taken > room) break;
  }
  return out;
}

std::size_t Units::resident_weights(const Placement& placement) const {
  return static_cast<std::size_t>(std::ranges::count_if(units_, [&](const Unit& unit) {
    return unit.group == Group::weight && placement[unit.first].weight.in_memory();
  }));
}

bool Units::all_stay(const Placement& placement) const {
  return std::ranges::all_of(units_,
                             [&](const Unit& unit) { return home_of(placement, unit.group, unit.first).in_memory(); });
}

}  // namespace spillway::plan
