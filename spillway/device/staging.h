// Copies between a device and host memory that is not registered with it: they pass through slots that are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "spillway/device/device.h"

namespace spillway::device {

/// One copy that a stream was asked for.
struct Transfer {
  Direction direction = Direction::to_device;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  Bytes bytes = 0;
};

/// The slots of one stream. One thread at a time calls it.
class Staging {
 public:
  /// `slots` registered pieces of kGoodCopy bytes each. Throws what the device says where it has no such memory.
  Staging(Device& device, Stream stream, std::size_t slots);

  /// Gives the stream its part of a copy. The host's part of a copy to the device has ended then; that of a copy from
  /// the device ends in land_first(). Waits for a slot where all are in use. `landed` is called for each piece of an
  /// earlier copy that lands in the meantime.
  template <class Landed>
  void copy(const Transfer& transfer, std::uint64_t number, const Landed& landed) {
    for (Bytes at = 0; at < transfer.bytes; at += kGoodCopy) {
      const bool lands = slots_[next_].to != nullptr;
      free_slot();
      if (lands) landed();
      copy_piece(transfer, at, number);
    }
  }
  /// Waits for the first piece that is on its way to the host, and copies it from its slot. There must be one.
  void land_first();
  /// Whether pieces are on their way to the host.
  [[nodiscard]] bool has_arrivals() const noexcept { return !arrivals_.empty(); }
  /// The number of the copy whose piece lands first. There must be one.
  [[nodiscard]] std::uint64_t first_arrival() const { return slots_[arrivals_.front()].number; }

 private:
  struct Slot {
    std::span<std::byte> memory;
    Event event = 0;          ///< behind the device's part of its last piece
    std::byte* to = nullptr;  ///< where its bytes go when they have come; null: nowhere
    Bytes bytes = 0;
    std::uint64_t number = 0;  ///< of its copy
  };

  void free_slot();
  void copy_piece(const Transfer& transfer, Bytes at, std::uint64_t number);

  Device& device_;
  const Stream stream_;
  std::vector<Slot> slots_;
  std::deque<std::size_t> arrivals_;  ///< slots, in the order of their pieces
  std::size_t next_ = 0;              ///< the slot of the next piece
};

}  // namespace spillway::device
