// What the processes that share a device have mapped together: docs/formats/device_share.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "spillway/base/bytes.h"
#include "spillway/sys/shared_memory.h"

namespace spillway::storage {

inline constexpr std::uint32_t kShareFormat = 1;
/// So many processes can share a device.
inline constexpr unsigned kShareSlots = 64;

/// The lock that is held while a process joins; slot `i` is held by lock `kShareSlotLocks + i`. These numbers
/// are the same in every format.
inline constexpr unsigned kShareJoinLock = 0;
inline constexpr unsigned kShareSlotLocks = 1;

/// One direction of one process. Only its owner writes it, so no death leaves it half changed.
struct ShareLane {
  std::uint64_t held = 0;    ///< bytes in flight
  std::uint64_t served = 0;  ///< bytes granted, counted from where it joined those that were there
  std::uint64_t wants = 0;   ///< 1: the last request was refused
};

struct alignas(128) ShareSlot {
  std::array<ShareLane, 2> lanes;  ///< read, write
  std::uint64_t process = 0;       ///< its number, for messages
};

struct ShareHeader {
  std::array<char, 8> magic;
  std::uint32_t endianness = 0;
  std::uint32_t format = 0;
  std::uint64_t bytes = 0;                  ///< of the whole file
  std::array<std::uint64_t, 2> budgets{};   ///< bytes in flight at the device: reads, writes
  std::uint64_t checksum = 0;               ///< XXH3-64 of everything before
  alignas(128) std::uint64_t occupied = 0;  ///< bit i: slot i is in use
};

struct ShareTable {
  ShareHeader header;
  std::array<ShareSlot, kShareSlots> slots;
};

/// Maps the table, making it anew when nobody uses what is there: then `budgets` count, else those that are there. The
/// caller has the join lock. Throws Error(unsupported) when processes use a table this build cannot read.
[[nodiscard]] ShareTable& map_share_table(sys::SharedMemory& memory, const std::array<std::uint64_t, 2>& budgets);

}  // namespace spillway::storage
