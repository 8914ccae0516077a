#include "spillway/execute/tiers.h"

#include <cstring>
#include <limits>

namespace spillway::execute {

Tiers::Tiers(const plan::Plan& plan, const state::Layout& layout, const state::UpdateRule& rule, Arenas arenas,
             Store* store, device::Device* device)
    : plan_(plan),
      layout_(layout),
      rule_(rule),
      arenas_(arenas),
      slots_(layout.chunks().size()),
      store_(store),
      device_(device) {
  if (device_ == nullptr) return;
  stream_ = device_->make_stream();
  copied_ = device_->make_event();
  copies_.resize(layout.chunks().size());
  for (const auto& pass : plan.schedule.passes) {
    plan::each_weight(pass, layout, rule, &plan::PassWeights::here, [&](plan::Index slot, plan::Place place) {
      if (!place.any()) return;
      const auto& buffer = plan.schedule.buffers[place.buffer];
      if (buffer.on_device() && buffer.whole) copies_[slot] = place;
    });
  }
}

std::byte* Tiers::resident_weight(std::size_t chunk) const {
  if (!home_of(chunk).on_host()) return nullptr;
  return arenas_.at(plan_.schedule, plan_.schedule.groups[slots_.slot_of(chunk)].weight);
}

std::byte* Tiers::resident_state(std::size_t chunk) const {
  const auto& schedule = plan_.schedule;
  if (schedule.resident_state[chunk] == plan::kNone) return nullptr;
  return arenas_.at(schedule, schedule.groups[chunk].state);
}

Tiers::There Tiers::locate_on_device(std::size_t chunk) const {
  const auto& groups = plan_.schedule.groups;
  return {arenas_.at(plan_.schedule, groups[slots_.slot_of(chunk)].weight),
          arenas_.at(plan_.schedule, groups[chunk].state)};
}

void Tiers::copy(device::Direction direction, std::byte* to, const std::byte* from, Bytes bytes) {
  if (to == nullptr || from == nullptr) return;
  device_->copy(stream_, direction, to, from, bytes);
  device_->record(copied_, stream_);
  device_->synchronise(copied_);
}

void Tiers::load(std::size_t chunk, std::byte* weight, std::byte* state) {
  const auto& it = layout_.chunks()[chunk];
  if (on_device(chunk)) {
    const auto from = locate_on_device(chunk);
    copy(device::Direction::from_device, weight, from.weight, weight_bytes(rule_, it));
    copy(device::Direction::from_device, state, from.state, state_bytes(rule_, it));
    return;
  }
  const auto get = [&](plan::ObjectKind kind, std::byte* to, const std::byte* resident, Bytes bytes) {
    if (to == nullptr || bytes == 0) return;
    if (resident != nullptr) {
      std::memcpy(to, resident, bytes);
    } else {
      store_->run(
          {.direction = storage::Direction::read, .kind = kind, .subject = chunk, .memory = to, .bytes = bytes});
    }
  };
  get(plan::ObjectKind::weight, weight, resident_weight(chunk), weight_bytes(rule_, it));
  get(plan::ObjectKind::state, state, resident_state(chunk), state_bytes(rule_, it));
}

void Tiers::store(std::size_t chunk, const std::byte* weight, const std::byte* state) {
  const auto& it = layout_.chunks()[chunk];
  stored_ = stored_ || weight != nullptr;
  if (on_device(chunk)) {
    device_->synchronise();  // passes of an evaluation may still read it
    const auto to = locate_on_device(chunk);
    copy(device::Direction::to_device, to.weight, weight, weight_bytes(rule_, it));
    copy(device::Direction::to_device, to.state, state, state_bytes(rule_, it));
    return;
  }
  const auto put = [&](plan::ObjectKind kind, const std::byte* from, std::byte* resident, Bytes bytes) {
    if (from == nullptr || bytes == 0) return;
    if (resident != nullptr) {
      std::memcpy(resident, from, bytes);
    } else {
      auto* memory = const_cast<std::byte*>(from);  // a write only reads it
      store_->run(
          {.direction = storage::Direction::write, .kind = kind, .subject = chunk, .memory = memory, .bytes = bytes});
    }
  };
  put(plan::ObjectKind::weight, weight, resident_weight(chunk), weight_bytes(rule_, it));
  put(plan::ObjectKind::state, state, resident_state(chunk), state_bytes(rule_, it));
}

bool Tiers::lies_on_path(std::size_t chunk) const {
  return store_ != nullptr && store_->written(plan::ObjectKind::weight, chunk);
}

/// True if a chunk that comes to the slot has to be put somewhere: paths may have it.
bool Tiers::is_wanted(std::size_t chunk, std::size_t slot) const {
  const bool copy = !copies_.empty() && copies_[slot].any();
  return copy || plan_.placement[slot].weight.in_memory() || !lies_on_path(chunk);
}

/// Null: none stays there.
std::byte* Tiers::copy_on_device(std::size_t chunk) const {
  return copies_.empty() ? nullptr : arenas_.at(plan_.schedule, copies_[slots_.slot_of(chunk)]);
}

void Tiers::start_transfer(WeightSwap::Side& side, storage::Direction direction) {
  side.transfer.emplace();
  store_->start({.direction = direction,
                 .kind = plan::ObjectKind::weight,
                 .subject = side.chunk,
                 .memory = side.memory,
                 .bytes = weight_bytes(rule_, layout_.chunks()[side.chunk]),
                 .deadline = std::numeric_limits<std::uint64_t>::max(),
                 .done = &storage::Waiter::done,
                 .context = &*side.transfer});
}

void Tiers::start_swap(WeightSwap& swap) {
  for (auto& side : swap.sides) {
    const auto slot = slots_.slot_of(&side == &swap.sides[0] ? swap.sides[1].chunk : swap.sides[0].chunk);
    if (!is_wanted(side.chunk, slot)) continue;
    if (!home_of(side.chunk).in_memory()) {
      start_transfer(side, storage::Direction::read);
      continue;
    }
    load(side.chunk, side.memory, nullptr);
    if (!plan_.placement[slot].weight.in_memory()) start_transfer(side, storage::Direction::write);
  }
}

void Tiers::wait(WeightSwap& swap) {
  for (auto& side : swap.sides) {
    if (side.transfer) store_->wait(*side.transfer);
  }
}

void Tiers::end_swap(WeightSwap& swap) {
  for (auto& side : swap.sides) {
    if (side.transfer) side.transfer->wait();
  }
  slots_.swap(swap.sides[0].chunk, swap.sides[1].chunk);
  if (device_ != nullptr) device_->synchronise();  // passes may still read the places
  for (const auto& side : swap.sides) {
    const auto bytes = weight_bytes(rule_, layout_.chunks()[side.chunk]);
    if (auto* const resident = resident_weight(side.chunk)) std::memcpy(resident, side.memory, bytes);
    copy(device::Direction::to_device, copy_on_device(side.chunk), side.memory, bytes);
    if (store_ != nullptr && home_of(side.chunk).in_memory()) store_->forget(plan::ObjectKind::weight, side.chunk);
  }
}

}  // namespace spillway::execute
