// A piece of a transfer on its way, and what an answer of the ring makes of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spillway/storage/path.h"
#include "spillway/storage/queue.h"

namespace spillway::storage {

/// Attempts in a row that may move nothing (EINTR, EAGAIN) before a piece, or a flush, fails.
inline constexpr std::uint32_t kMostFruitless = 1000;

/// The kernel did not begin, and may if it is asked again.
[[nodiscard]] bool is_interrupted(std::int32_t result) noexcept;

/// A piece in flight, or reaped and waiting for its checksum.
struct Piece {
  Queue::Id job = 0;
  Direction direction = Direction::read;
  Area area = Area::data;
  std::byte* memory = nullptr;
  Bytes offset = 0;  ///< of the piece, in its area
  std::uint32_t bytes = 0;
  std::uint32_t moved = 0;
  std::uint32_t fruitless = 0;  ///< attempts in a row that moved nothing
  std::uint64_t checksum = 0;   ///< of a write
};

enum class Verdict : std::uint8_t {
  again,    ///< what is left of it is to be submitted
  whole,    ///< all of it was moved
  failed,   ///< by the operating system
  stalled,  ///< it moves nothing
};

/// Takes the ring's answer: bytes moved, or a negative errno.
[[nodiscard]] Verdict judge(Piece& piece, std::int32_t result) noexcept;

}  // namespace spillway::storage
