#include "spillway/storage/dealer.h"

#include <algorithm>
#include <limits>

namespace spillway::storage {

Dealer::Dealer(std::size_t paths) : lanes_(paths) {}

void Dealer::set_speed(std::uint32_t path, const Speed& speed) {
  lanes_[path].read_cost = 1 / speed.read;
  lanes_[path].write_cost = 1 / speed.write;
}

void Dealer::close(std::uint32_t path) {
  lanes_[path].open = false;
}

void Dealer::add_places(std::uint32_t path, std::uint64_t count) {
  lanes_[path].places += count;
}

void Dealer::remove_place(std::uint32_t path) {
  --lanes_[path].places;
}

std::uint64_t Dealer::places() const noexcept {
  std::uint64_t sum = 0;
  for (const Lane& lane : lanes_) sum += lane.open ? lane.places : 0;
  return sum;
}

/// Where the path that is furthest behind stands: work that is queued starts from there.
double Dealer::now() const noexcept {
  double now = std::numeric_limits<double>::infinity();
  for (const Lane& lane : lanes_) {
    if (lane.deals()) now = std::min(now, lane.turn);
  }
  return now;
}

std::uint32_t Dealer::deal(Bytes bytes) {
  const double from = now();
  double best = std::numeric_limits<double>::infinity();
  std::uint32_t winner = 0;
  for (std::uint32_t path = 0; path < lanes_.size(); ++path) {
    const Lane& lane = lanes_[path];
    if (!lane.deals()) continue;
    const double finish = std::max(lane.turn, from + lane.queued()) + lane.cost(bytes);
    if (finish < best || (finish == best && lanes_[winner].far && !lane.far)) {
      best = finish;
      winner = path;
    }
  }
  Lane& lane = lanes_[winner];
  lane.turn += lane.cost(bytes);
  lane.writing += bytes;
  --lane.places;
  for (Lane& other : lanes_) other.turn = std::max(other.turn, lane.turn - other.credit());
  return winner;
}

}  // namespace spillway::storage
