// The direction of a path's next piece: each has half of the pieces in flight while both wait, and the process has its
// share of the device.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "spillway/storage/path.h"
#include "spillway/storage/queue.h"
#include "spillway/storage/share.h"

namespace spillway::storage {

/// Counts the pieces in flight. The path's thread alone uses it.
class Turns {
 public:
  /// At most `depth` pieces, > 0, of up to `piece` bytes. Null: no other process is asked.
  Turns(unsigned depth, Bytes piece, std::unique_ptr<Share> share);

  /// A piece has ended, or there is something new: the share is worth asking again.
  void renew() noexcept { refused_ = {false, false}; }
  /// The direction whose next piece is to be taken from the queue; it counts as in flight from here. Nothing: none may
  /// begin.
  [[nodiscard]] std::optional<Direction> next(Queue& queue);
  /// A piece has ended, or was not started.
  void end(Direction direction);

  /// Pieces in flight.
  [[nodiscard]] unsigned in_flight() const noexcept { return in_flight_[0] + in_flight_[1]; }
  [[nodiscard]] bool full() const noexcept { return in_flight() >= depth_; }

 private:
  [[nodiscard]] std::optional<Direction> choose(Queue& queue) const;
  [[nodiscard]] bool waiting(Queue& queue, Direction direction) const;

  const unsigned depth_;
  const Bytes piece_;
  std::unique_ptr<Share> share_;
  std::array<unsigned, 2> in_flight_ = {0, 0};    ///< by direction
  std::array<bool, 2> refused_ = {false, false};  ///< by the share, since a piece ended last; by direction
};

}  // namespace spillway::storage
