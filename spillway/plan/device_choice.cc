#include "spillway/plan/device_choice.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/plan/arena_layout.h"
#include "spillway/plan/bisect.h"
#include "spillway/plan/device_workspace.h"
#include "spillway/plan/if_it_fits.h"
#include "spillway/plan/units.h"

namespace spillway::plan {

void DeviceChoice::list_units() {
  for (auto* list : {&fixed_, &free_, &states_}) list->clear();
  std::vector<Unit> boundaries, weights, grads;
  for (Index i = 0; i < placement_.boundaries.size(); ++i) boundaries.push_back({Kind::activation, i, 1});
  for (const auto& it : weights_of_passes(problem_.description, problem_.layout)) {
    if (can_be_on_device(problem_.description, problem_.layout, it.first))
      states_.push_back({Kind::state, it.first, it.count});
  }
  for (const auto& it : objects_of_passes(problem_.description, problem_.layout)) {
    weights.push_back({Kind::weight, it.first, it.count});
  }
  take_turns();
  const bool stay = !problem_.description.is_shared();  // those of several processes are added on the host
  for (const auto& it : device_updated()) {
    if (stay) grads.push_back({Kind::grad, it.first, it.count});
  }
  const auto add = [&](std::vector<Unit>& units, const std::optional<double>& share,
                       std::optional<std::size_t> decided = {}) {
    std::ranges::reverse(units);
    std::ranges::stable_sort(units, {}, [&](const Unit& unit) {
      return unit.kind == Kind::weight ? demand_order(problem_.layout, unit.first) : std::pair<double, std::uint64_t>();
    });
    const auto all = static_cast<double>(units.size());
    const auto asked = share ? static_cast<std::size_t>(std::max(0.0, std::ceil(*share * all - 0.5))) : decided;
    for (std::size_t i = 0; i < units.size(); ++i) {
      if (!asked) free_.push_back(units[i]);
      if (asked && i < *asked) fixed_.push_back(units[i]);
    }
  };
  add(boundaries, problem_.budget.device->activation);
  add(grads, problem_.budget.device->grad);
  add(weights, problem_.budget.device->weight, problem_.decisions.device_weights);
}

/// Orders a head's slices: the first of each process, then the second of each. All processes have as many there.
void DeviceChoice::take_turns() {
  std::vector<std::size_t> slices(problem_.description.world.size, 0);
  std::vector<std::pair<std::size_t, Unit>> turns;
  for (const auto& unit : states_) {
    const auto& chunk = problem_.layout.chunks()[unit.first];
    const bool slice = traits(problem_.layout.blocks()[chunk.block].role).is_table;
    turns.emplace_back(slice ? ++slices[problem_.description.owner(problem_.layout, chunk)] : 0, unit);
  }
  std::ranges::stable_sort(turns, {}, &std::pair<std::size_t, Unit>::first);
  std::ranges::transform(turns, states_.begin(), &std::pair<std::size_t, Unit>::second);
}

std::span<const DeviceChoice::Unit> DeviceChoice::device_updated() const {
  const auto others = std::span(states_).subspan(std::min(blocks_.device_resident, states_.size()));
  return others.first(std::min(blocks_.device_updated, others.size()));
}

Placement DeviceChoice::place(std::size_t free) const {
  Placement out(problem_.layout);
  out.device = true;
  const auto keep = [&](const Unit& unit) {
    for (auto i = unit.first; i < unit.first + unit.count; ++i) {
      if (unit.kind == Kind::activation) out.boundaries[i].copies.add(TierKind::device);
      if (unit.kind == Kind::weight) out.chunks[i].weight.copies.add(TierKind::device);
      if (unit.kind == Kind::state) out.chunks[i].live_on_device(!problem_.description.is_shared());
      if (unit.kind == Kind::grad) out.chunks[i].gradient = {TierKind::device};
    }
    if (unit.kind == Kind::weight) keep_changes(unit, out);
  };
  std::ranges::for_each(std::span(states_).first(blocks_.device_resident), keep);
  for (const auto& unit : device_updated()) {
    for (Index c = unit.first; c < unit.first + unit.count; ++c) {
      if (state::is_trainable(problem_.layout.chunks()[c].training)) out.chunks[c].updated_on = TierKind::device;
    }
  }
  std::ranges::for_each(fixed_, keep);
  for (std::size_t i = 0; i < free; ++i) keep(free_[i]);
  return out;
}

/// Masters whose copies take changes stay in host memory, with the other weights of their unit.
void DeviceChoice::keep_changes(const Unit& unit, Placement& placement) const {
  bool any = false;
  for (auto c = unit.first; c < unit.first + unit.count; ++c) {
    auto& it = placement.chunks[c];
    if (!takes_change(c) || it.updated_there()) continue;
    it.state.copies.add(TierKind::device);
    it.state.keep();
    any = true;
  }
  for (auto c = unit.first; any && c < unit.first + unit.count; ++c) placement.chunks[c].weight.keep();
}

bool DeviceChoice::takes_change(Index chunk) const {
  return problem_.decisions.applies_changes && can_take_change(problem_.description, problem_.layout, chunk);
}

Bytes DeviceChoice::room() const noexcept {
  const auto& device = *problem_.budget.device;
  return device.capacity - std::min(device.capacity, problem_.device_work() + spare_);
}

/// An arena with what arithmetic needs behind it.
Bytes DeviceChoice::add_workspace(Bytes arena) const {
  return round_up(arena, 256) + device_workspace(problem_.description, problem_.layout).bytes();
}

/// Bytes by which the process with the most resident blocks exceeds this one, their incoming gradients included. All
/// processes choose alike, if something is left to choose. Each process has as many frozen blocks and other weights.
Bytes DeviceChoice::more_elsewhere() const {
  const auto& asked = *problem_.budget.device;
  const bool decided = problem_.decisions.device_weights || (asked.weight && asked.state && asked.device_updated);
  if (!problem_.description.is_shared() || decided) return 0;
  const auto rule = problem_.description.rule();
  std::vector<Bytes> bytes(problem_.description.world.size, 0);
  for (const auto& unit : std::span(states_).first(blocks_.device_resident)) {
    for (Index c = unit.first; c < unit.first + unit.count; ++c) {
      const auto& chunk = problem_.layout.chunks()[c];
      if (!state::is_trainable(chunk.training)) continue;
      const auto& block = problem_.layout.blocks()[chunk.block];
      const auto weight = block.trainable_chunks == block.chunks ? weight_bytes(rule, chunk) : 0;
      bytes[problem_.description.owner(problem_.layout, chunk)] +=
          weight + state_bytes(rule, chunk) + grad_bytes(rule, chunk);
    }
  }
  return *std::ranges::max_element(bytes) - bytes[problem_.description.world.rank];
}

bool DeviceChoice::try_it(const DeviceSchedule& schedule, std::size_t free, std::uint32_t ahead) {
  const auto stays = place(free);
  auto tried = schedule(stays, ahead);
  const auto bytes = add_workspace(lay_out(tried, TierKind::device) + more_elsewhere());
  asked_ = bytes;
  if (bytes > room()) return false;
  if (problem_.budget.device->in_dram) {  // and leaves the host what it needs at least
    const auto host = problem_.budget.process + problem_.work() + lay_out(tried);
    if (free + blocks_.device_resident + blocks_.device_updated > 0 && host + bytes > problem_.budget.dram)
      return false;
  }
  placement_ = stays;
  ahead_ = ahead;
  bytes_ = bytes;
  return true;
}

Bytes DeviceChoice::bytes_of(const Unit& unit) const {
  if (unit.kind == Kind::activation) return problem_.description.boundary_bytes();
  const auto rule = problem_.description.rule();
  Bytes out = 0;
  for (Index c = unit.first; c < unit.first + unit.count; ++c) {
    const auto& chunk = problem_.layout.chunks()[c];
    out += unit.kind == Kind::grad ? state::grad_bytes(rule, chunk) : state::weight_bytes(rule, chunk);
    if (unit.kind == Kind::weight && takes_change(c)) out += state::remainders_bytes(rule, chunk);
  }
  return out;
}

/// The most that can stay beside a window that has room; what try_it() leaves is of that. As many more as have room
/// beside what the last ones took are tried until that is none: it is the answer, or next to it.
std::size_t DeviceChoice::most(const DeviceSchedule& schedule, std::uint32_t ahead) {
  std::vector<Bytes> bytes{0};  // of the first so many
  for (const auto& unit : free_) bytes.push_back(bytes.back() + bytes_of(unit));
  const auto fits = [&](std::size_t free) { return try_it(schedule, free, ahead); };
  const auto about = [&](std::size_t of) {
    const auto room = bytes[of] + this->room();
    const auto more = std::ranges::upper_bound(bytes, room - std::min(room, asked_));
    return static_cast<std::size_t>(more - bytes.begin()) - 1;
  };
  std::size_t low = 0, high = free_.size();
  for (auto guess = about(0); guess > low && guess <= high; guess = about(guess)) {
    const bool does = fits(guess);
    (does ? low : high) = does ? guess : guess - 1;
  }
  return low + bisect_from<std::size_t>(1, high - low, [&](std::size_t more) { return fits(low + more); });
}

std::size_t DeviceChoice::may_live() const {
  DeviceChoice other(problem_);
  other.list_units();
  return other.states_.size();
}

std::size_t DeviceChoice::most_device_resident(const DeviceSchedule& schedule) {
  blocks_ = {};
  list_units();
  const auto ahead = problem_.budget.window > 0 ? static_cast<std::uint32_t>(problem_.budget.window) - 1 : 0;
  return bisect(states_.size(), [&](std::size_t device_resident) {
    blocks_.device_resident = device_resident;
    return try_it(schedule, 0, ahead);
  });
}

void DeviceChoice::choose(const DeviceSchedule& schedule) {
  list_units();
  if (problem_.budget.window > 0) {
    const auto ahead = static_cast<std::uint32_t>(problem_.budget.window) - 1;
    if (try_it(schedule, 0, ahead)) {
      most(schedule, ahead);
      return;
    }
  } else {
    for (const std::uint32_t ahead : {1U, 0U}) {
      if (!try_it(schedule, 0, ahead)) continue;
      const auto kept = most(schedule, ahead);
      if (ahead == 1) try_it(schedule, kept, 2);
      return;
    }
  }
  auto least =
      schedule(place(0), problem_.budget.window > 0 ? static_cast<std::uint32_t>(problem_.budget.window) - 1 : 0);
  refuse(add_workspace(lay_out(least, TierKind::device)));
}

void DeviceChoice::refuse(Bytes needed) const {
  const auto& device = *problem_.budget.device;
  const auto work = problem_.device_work();
  auto message =
      text("does not fit on the device: the smallest plan needs ", human(work + needed),
           " there (PyTorch's working set ", human(work), ", arena ", human(needed), "), and gpu_memory is ",
           human(device.capacity), ". It would fit with --gpu_memory ", ceil_div(work + needed, MiB), "MiB, ");
  if (problem_.budget.window > 1) message += "with a smaller --window, ";
  if (device.weight.value_or(0) > 0 || device.activation.value_or(0) > 0 || blocks_.device_resident > 0)
    message += "with less that stays there, ";
  throw NoRoomOnDevice(message + "or with a smaller max_length or per_device_train_batch_size");
}

}  // namespace spillway::plan
