#include "spillway/storage/turns.h"

#include <utility>

namespace spillway::storage {

Turns::Turns(unsigned depth, Bytes piece, std::unique_ptr<Share> share)
    : depth_(depth), piece_(piece), share_(std::move(share)) {}

std::optional<Direction> Turns::next(Queue& queue) {
  while (!full()) {
    const auto direction = choose(queue);
    if (!direction) break;
    if (!share_ || share_->try_acquire(*direction, piece_)) {
      ++in_flight_[index(*direction)];
      return direction;
    }
    refused_[index(*direction)] = true;  // one of ours is in flight that way: its end brings us here
  }
  return std::nullopt;
}

void Turns::end(Direction direction) {
  --in_flight_[index(direction)];
  if (share_) share_->release(direction, piece_);
}

bool Turns::waiting(Queue& queue, Direction direction) const {
  return !refused_[index(direction)] && queue.waiting(direction);
}

/// The more urgent direction is next, unless it has its half of the depth and the other one not yet. When both have
/// their half, the depth is used up, and this is not called.
std::optional<Direction> Turns::choose(Queue& queue) const {
  const bool reads = waiting(queue, Direction::read);
  const bool writes = waiting(queue, Direction::write);
  if (!reads && !writes) return std::nullopt;
  if (!reads || !writes) return reads ? Direction::read : Direction::write;
  const unsigned half = depth_ - depth_ / 2;
  if (in_flight_[index(Direction::read)] >= half) return Direction::write;
  if (in_flight_[index(Direction::write)] >= half) return Direction::read;
  return queue.most_urgent();
}

}  // namespace spillway::storage
