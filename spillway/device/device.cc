#include "spillway/device/device.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "spillway/base/error.h"

namespace spillway::device {

/// Two registered pieces that copies of one stream pass through in turn.
class Device::Staging {
 public:
  Staging(Device& device, Stream stream)
      : device_(device), stream_(stream), memory_(device.staging_memory(kSlots * kGoodCopy)) {
    for (auto& slot : slots_) slot.event = device.make_event();
  }

  void to_device(std::byte* to, const std::byte* from, Bytes bytes) {
    for (Bytes at = 0; at < bytes; at += kGoodCopy) {
      const auto size = std::min(kGoodCopy, bytes - at);
      auto& slot = take();
      std::memcpy(memory_of(slot), from + at, size);
      device_.issue(stream_, Direction::to_device, to + at, memory_of(slot), size);
      device_.record(slot.event, stream_);
    }
  }

  /// Ends when the bytes are there: the host carries the last of them.
  void from_device(std::byte* to, const std::byte* from, Bytes bytes) {
    for (Bytes at = 0; at < bytes; at += kGoodCopy) {
      const auto size = std::min(kGoodCopy, bytes - at);
      auto& slot = take();
      device_.issue(stream_, Direction::from_device, memory_of(slot), from + at, size);
      device_.record(slot.event, stream_);
      slot.to = to + at;
      slot.bytes = size;
    }
    for (std::size_t i = 0; i < kSlots; ++i) take();
  }

 private:
  static constexpr std::size_t kSlots = 2;
  struct Slot {
    Event event = 0;
    std::byte* to = nullptr;  ///< where its bytes go when they have come; null: nowhere
    Bytes bytes = 0;
  };

  std::byte* memory_of(const Slot& slot) {
    return memory_.data() + static_cast<std::size_t>(&slot - slots_.data()) * kGoodCopy;
  }

  /// The next slot, when it is free.
  Slot& take() {
    auto& slot = slots_[next_++ % kSlots];
    device_.synchronise(slot.event);
    if (slot.to != nullptr) std::memcpy(slot.to, memory_of(slot), slot.bytes);
    slot.to = nullptr;
    return slot;
  }

  Device& device_;
  const Stream stream_;
  const std::span<std::byte> memory_;
  std::array<Slot, kSlots> slots_;
  std::size_t next_ = 0;
};

Device::Device() = default;
Device::~Device() = default;

std::span<std::byte> Device::allocate(Bytes bytes) {
  if (!memory_.empty()) throw Error(ErrorCode::internal, "a device's arena is allocated once");
  if (bytes > 0) memory_ = do_allocate(bytes);
  return memory_;
}

bool Device::register_host(std::span<std::byte> range) {
  if (range.empty()) return true;
  const auto reason = do_register(range);
  if (reason.empty()) {
    const std::lock_guard lock(mutex_);
    registered_.push_back(range);
    return true;
  }
  notice_ = text(human(range.size()), " of host memory could not be registered with ", name(), " (", reason,
                 "); copies pass through a ring of ", human(2 * kGoodCopy),
                 " for each direction, which takes more of the CPUs");
  return false;
}

void Device::unregister_host(std::span<std::byte> range) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = std::ranges::find_if(registered_, [&](const auto& known) { return known.data() == range.data(); });
    if (it == registered_.end()) return;
    registered_.erase(it);
  }
  do_unregister(range);
}

bool Device::registered(const std::byte* host, Bytes bytes) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(registered_, [&](const auto& range) {
    return host >= range.data() && host + bytes <= range.data() + range.size();
  });
}

Device::Staging& Device::staging_of(Stream stream) {
  const std::lock_guard lock(mutex_);
  auto& out = staging_[stream];
  if (!out) out = std::make_unique<Staging>(*this, stream);
  return *out;
}

void Device::copy(Stream stream, Direction direction, std::byte* to, const std::byte* from, Bytes bytes) {
  if (bytes == 0) return;
  copied_[static_cast<std::size_t>(direction)].fetch_add(bytes, std::memory_order_relaxed);
  const bool down = direction == Direction::from_device;
  if (!separate() || registered(down ? to : from, bytes)) {
    issue(stream, direction, to, from, bytes);
  } else if (down) {
    staging_of(stream).from_device(to, from, bytes);
  } else {
    staging_of(stream).to_device(to, from, bytes);
  }
}

}  // namespace spillway::device
