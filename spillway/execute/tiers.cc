#include "spillway/execute/tiers.h"

#include <cstring>

namespace spillway::execute {

Tiers::Tiers(const plan::Plan& plan, const state::Layout& layout, const state::UpdateRule& rule, Arenas arenas,
             Store* store, device::Device* device)
    : plan_(plan), layout_(layout), rule_(rule), arenas_(arenas), store_(store), device_(device) {
  if (device_ == nullptr) return;
  stream_ = device_->make_stream();
  copied_ = device_->make_event();
}

std::byte* Tiers::resident_weight(std::size_t chunk) const {
  if (!plan_.placement[chunk].weight.on_host()) return nullptr;
  return arenas_.at(plan_.schedule, plan_.schedule.groups[chunk].weight);
}

std::byte* Tiers::resident_state(std::size_t chunk) const {
  const auto& schedule = plan_.schedule;
  if (schedule.resident_state[chunk] == plan::kNone) return nullptr;
  return arenas_.at(schedule, schedule.groups[chunk].state);
}

Tiers::There Tiers::locate_on_device(std::size_t chunk) const {
  const auto& groups = plan_.schedule.groups[chunk];
  return {arenas_.at(plan_.schedule, groups.weight), arenas_.at(plan_.schedule, groups.state)};
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

}  // namespace spillway::execute
