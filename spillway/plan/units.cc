#include "spillway/plan/units.h"

#include <algorithm>
#include <array>
#include <utility>

namespace spillway::plan {
namespace {

using state::BlockRole;

/// Where the group's object of a chunk lives, or that boundary.
template <class Residencies>
auto& home_of(Residencies& placement, Group group, Index i) {
  const auto home = traits(group).home;
  return home == nullptr ? placement.boundaries[i].home : placement.chunks[i].*home;
}

void keep(Placement& placement, const Unit& unit) {
  for (auto i = unit.first; i < unit.first + unit.count; ++i) home_of(placement, unit.group, i).keep();
}

std::array<Group, 4> groups(const Problem& problem) {
  if (problem.redo().gradients) return {Group::weight, Group::activation, Group::state, Group::grad};
  return {Group::weight, Group::activation, Group::grad, Group::state};
}

}  // namespace

Placement least_placement(const Problem& problem, Placement device) {
  const auto& chunks = problem.layout.chunks();
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const bool mine = problem.description.has(problem.layout, chunks[c]);
    if (!mine || !has_state(chunks[c].training)) device.chunks[c].state.keep();
    if (!mine || !has_gradient(chunks[c].training)) device.chunks[c].gradient.keep();
  }
  device.shared = problem.description.is_shared();
  device.own_weights = problem.budget.own_weights && device.shared;
  for (Index i = 0; i < first_backward(problem.layout); ++i) device.boundaries[i].home.keep();
  return device;
}

Units::Units(const Problem& problem, Placement device)
    : problem_(problem), fixed_(least_placement(problem, std::move(device))) {
  for (const auto group : groups(problem)) list(group);
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
}

void Units::list_block(Group group, const state::Block& block) {
  const auto first = static_cast<Index>(block.first_chunk);
  const bool layer = block.role == BlockRole::layer;
  if (layer && elsewhere(group, first)) return;
  if (!layer || group == Group::state) {
    for (Index c = first; c < first + block.chunks; ++c) list_chunk(group, c);
    return;
  }
  if (group == Group::weight) {
    const auto bytes = block.elements * problem_.weight_element();
    units_.push_back({group, first, static_cast<Index>(block.chunks), kept_weights(first, bytes, block.chunks), bytes});
  } else if (const auto own = own_gradients(block); own.count > 0) {
    Bytes bytes = 0;
    for (auto c = own.first; c < own.end(); ++c) bytes += is_mine(c) ? bytes_of(group, c) : 0;
    units_.push_back({group, own.first, own.count, bytes, bytes});
  }
}

/// Of the weights of so many chunks what a process that keeps them has in memory.
Bytes Units::kept_weights(Index first, Bytes all, std::size_t chunks) const {
  const auto& block = problem_.layout.blocks()[problem_.layout.chunks()[first].block];
  if (!fixed_.own_weights || block.trainable_chunks < block.chunks) return all;
  Bytes out = 0;
  for (auto c = first; c < first + chunks; ++c) out += is_mine(c) ? bytes_of(Group::weight, c) : 0;
  return out;
}

bool Units::is_mine(Index chunk) const {
  return problem_.description.has(problem_.layout, problem_.layout.chunks()[chunk]);
}

/// The chunks of a layer from the first to the last that is trainable and that this process has.
Range Units::own_gradients(const state::Block& block) const {
  Range out;
  for (Index i = 0; i < block.trainable_chunks; ++i) {
    const auto c = static_cast<Index>(block.first_chunk + i);
    if (!is_mine(c)) continue;
    if (out.count == 0) out.first = c;
    out.count = c + 1 - out.first;
  }
  return out;
}

void Units::list_chunk(Group group, Index chunk) {
  if (elsewhere(group, chunk) || (group != Group::weight && !is_mine(chunk))) return;
  if (group == Group::grad && !has_dense_grad(problem_.description, problem_.layout, chunk)) return;
  if (group == Group::state && !has_state(problem_.layout.chunks()[chunk].training)) return;
  const auto bytes = bytes_of(group, chunk);
  units_.push_back({group, chunk, 1, group == Group::weight ? kept_weights(chunk, bytes, 1) : bytes, bytes});
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
    const auto share = problem_.budget.has_path() ? problem_.budget.placement.*traits(group).share : 1.0;
    Bytes total = 0, kept = 0;
    for (const auto& unit : units_) total += unit.group == group ? unit.all : 0;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      const auto& unit = units_[i];
      if (unit.group != group) continue;
      if (!share) {
        free_.push_back(i);
      } else if (static_cast<double>(kept) < *share * static_cast<double>(total) - 0.5) {
        keep(fixed_, unit);
        kept += unit.all;
        fixed_bytes_ += unit.bytes;
      }
    }
  }
}

Placement Units::with(std::size_t free) const {
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

bool Units::all_stay(const Placement& placement) const {
  return std::ranges::all_of(units_,
                             [&](const Unit& unit) { return home_of(placement, unit.group, unit.first).in_memory(); });
}

}  // namespace spillway::plan
