// What a pool keeps of its requests while they are under way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>

#include "spillway/storage/pool.h"

namespace spillway::storage {

inline constexpr Bytes kPoolPiece = kExtentAlignment;

/// A request between its start and its end.
struct Active {
  Pool::Request request;
  std::uint64_t arrival = 0;
  std::uint32_t pending = 0;                ///< runs under way, stretches waiting, and one while we hand it out
  std::exception_ptr error;                 ///< the first
  bool reserved = false;                    ///< its places were reserved
  std::uint32_t other = Pool::Pair::kNone;  ///< the other request of its pair, which came while this one waited

  [[nodiscard]] std::uint32_t pieces() const { return static_cast<std::uint32_t>(request.places.size()); }
  /// The bytes of `count` pieces from `first` on; only the last piece of a request may be short.
  [[nodiscard]] Bytes bytes(std::uint32_t first, std::uint32_t count) const {
    return std::min(count * kPoolPiece, request.bytes - first * kPoolPiece);
  }
};

/// Pieces of a request that lie together, as one transfer.
struct Run {
  std::uint32_t request = 0;
  std::uint32_t path = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  Bytes bytes = 0;
};

/// Pieces of a write that have no place yet, and wait for one.
struct UnplacedWrite {
  std::uint64_t deadline = 0;
  std::uint64_t arrival = 0;
  std::uint32_t request = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t more = 0;                                      ///< places to be reserved beside
  bool reserved = false;                                       ///< their places were reserved
  bool operator<(const UnplacedWrite& other) const noexcept {  // std::priority_queue serves the largest
    if (reserved != other.reserved) return other.reserved;
    return deadline != other.deadline ? deadline > other.deadline : arrival > other.arrival;
  }
};

}  // namespace spillway::storage
