#include "spillway/device/device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

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

namespace {

/// Numbers of all pieces of a range, those at these offsets first.
std::vector<Bytes> piece_order(Bytes bytes, Bytes piece, std::span<const Bytes> first) {
  std::vector<Bytes> out;
  std::vector<bool> taken(ceil_div(bytes, piece));
  const auto take = [&](Bytes number) {
    if (number >= taken.size() || taken[number]) return;
    taken[number] = true;
    out.push_back(number);
  };
  for (const auto offset : first) take(offset / piece);
  for (Bytes number = 0; number < taken.size(); ++number) take(number);
  return out;
}

}  // namespace

Device::Device(Bytes piece) : piece_(piece) {}
Device::~Device() = default;

std::span<std::byte> Device::allocate(Bytes bytes) {
  if (!memory_.empty()) throw Error(ErrorCode::internal, "a device's arena is allocated once");
  if (bytes > 0) memory_ = do_allocate(bytes);
  return memory_;
}

bool Device::register_host(std::span<std::byte> range, std::span<const Bytes> first) {
  Bytes refused = 0;
  std::string reason;
  for (const auto number : piece_order(range.size(), piece_, first)) {
    const auto at = number * piece_;
    const auto piece = range.subspan(at, std::min(piece_, range.size() - at));
    auto answer = do_register(piece);
    if (answer.empty()) {
      const std::lock_guard lock(mutex_);
      registered_.emplace(piece.data(), piece.size());
    } else {
      refused += piece.size();
      reason = std::move(answer);
    }
  }
  if (refused == 0) return true;
  const auto of_all = refused < range.size() ? text(" of ", human(range.size())) : std::string();
  notice_ = text(human(refused), of_all, " of host memory could not be registered with ", name(), " (", reason,
                 "); copies of that part pass through a ring of ", human(2 * kGoodCopy),
                 " for each direction, which takes more of the CPUs");
  return false;
}

void Device::unregister_host(std::span<std::byte> range) {
  std::vector<std::span<std::byte>> pieces;
  {
    const std::lock_guard lock(mutex_);
    const auto begin = registered_.lower_bound(range.data());
    const auto end = registered_.lower_bound(range.data() + range.size());
    for (auto it = begin; it != end; ++it) pieces.emplace_back(it->first, it->second);
    registered_.erase(begin, end);
  }
  for (const auto& piece : pieces) do_unregister(piece);
}

Device::Part Device::first_part(const std::byte* host, Bytes bytes) const {
  const std::lock_guard lock(mutex_);
  const auto next = registered_.upper_bound(host);
  if (next != registered_.begin()) {
    const auto& [begin, size] = *std::prev(next);
    if (host < begin + size) return {std::min(bytes, static_cast<Bytes>(begin + size - host)), true};
  }
  return {next == registered_.end() ? bytes : std::min(bytes, static_cast<Bytes>(next->first - host)), false};
}

Device::Staging& Device::staging_of(Stream stream) {
  const std::lock_guard lock(mutex_);
  auto& out = staging_[stream];
  if (!out) out = std::make_unique<Staging>(*this, stream);
  return *out;
}

/// A copy ends at the end of a piece: a driver takes a range of one registration alone.
void Device::copy(Stream stream, Direction direction, std::byte* to, const std::byte* from, Bytes bytes) {
  if (bytes == 0) return;
  copied_[static_cast<std::size_t>(direction)].fetch_add(bytes, std::memory_order_relaxed);
  if (!separate()) return issue(stream, direction, to, from, bytes);
  const bool down = direction == Direction::from_device;
  while (bytes > 0) {
    const auto part = first_part(down ? to : from, bytes);
    if (part.registered) {
      issue(stream, direction, to, from, part.bytes);
    } else if (down) {
      staging_of(stream).from_device(to, from, part.bytes);
    } else {
      staging_of(stream).to_device(to, from, part.bytes);
    }
    to += part.bytes;
    from += part.bytes;
    bytes -= part.bytes;
  }
}

}  // namespace spillway::device
