#include "spillway/device/staging.h"

#include <algorithm>
#include <cstring>

namespace spillway::device {

Staging::Staging(Device& device, Stream stream, std::size_t slots) : device_(device), stream_(stream), slots_(slots) {
  const auto memory = device.staging_memory(slots * kGoodCopy);
  for (std::size_t i = 0; i < slots; ++i) {
    slots_[i].memory = memory.subspan(i * kGoodCopy, kGoodCopy);
    slots_[i].event = device.make_event();
  }
}

/// Slots are used in turn, so a piece in the next one is the first to land.
void Staging::free_slot() {
  if (slots_[next_].to != nullptr) return land_first();
  device_.do_synchronise(slots_[next_].event);
}

void Staging::copy_piece(const Transfer& transfer, Bytes at, std::uint64_t number) {
  auto& slot = slots_[next_];
  const auto size = std::min(kGoodCopy, transfer.bytes - at);
  if (transfer.direction == Direction::to_device) {
    std::memcpy(slot.memory.data(), transfer.from + at, size);
    device_.issue(stream_, transfer.direction, transfer.to + at, slot.memory.data(), size);
    device_.do_record(slot.event, stream_);
  } else {
    device_.issue(stream_, transfer.direction, slot.memory.data(), transfer.from + at, size);
    device_.do_record(slot.event, stream_);
    slot.to = transfer.to + at;
    slot.bytes = size;
    slot.number = number;
    arrivals_.push_back(next_);
  }
  next_ = (next_ + 1) % slots_.size();
}

void Staging::land_first() {
  auto& slot = slots_[arrivals_.front()];
  device_.do_synchronise(slot.event);
  std::memcpy(slot.to, slot.memory.data(), slot.bytes);
  slot.to = nullptr;
  arrivals_.pop_front();
}

}  // namespace spillway::device
