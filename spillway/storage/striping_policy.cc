#include "spillway/storage/striping_policy.h"

#include <algorithm>
#include <limits>

namespace spillway::storage {

StripingPolicy::StripingPolicy(std::size_t paths) : entries_(paths) {}

void StripingPolicy::set_speed(std::uint32_t path, const Speed& speed) {
  entries_[path].read_cost = 1 / speed.read;
  entries_[path].write_cost = 1 / speed.write;
}

void StripingPolicy::close(std::uint32_t path) {
  entries_[path].open = false;
}

void StripingPolicy::add_places(std::uint32_t path, std::uint64_t count) {
  entries_[path].places += count;
}

void StripingPolicy::remove_place(std::uint32_t path) {
  --entries_[path].places;
}

std::uint64_t StripingPolicy::places() const noexcept {
  std::uint64_t sum = 0;
  for (const Entry& entry : entries_) sum += entry.open ? entry.places : 0;
  return sum;
}

std::uint64_t StripingPolicy::places_in_shares() const noexcept {
  double weights = 0, least = std::numeric_limits<double>::infinity();
  for (const Entry& entry : entries_) {
    if (!entry.open) continue;
    weights += entry.weight();
    least = std::min(least, static_cast<double>(entry.places) / entry.weight());
  }
  return weights > 0 ? static_cast<std::uint64_t>(least * weights) : 0;
}

/// The virtual time of the path that is furthest behind, from which queued work starts.
double StripingPolicy::now() const noexcept {
  double now = std::numeric_limits<double>::infinity();
  for (const Entry& entry : entries_) {
    if (entry.eligible()) now = std::min(now, entry.pass);
  }
  return now;
}

std::uint32_t StripingPolicy::choose(Bytes bytes) {
  const double from = now();
  double best = std::numeric_limits<double>::infinity();
  std::uint32_t winner = 0;
  for (std::uint32_t path = 0; path < entries_.size(); ++path) {
    const Entry& entry = entries_[path];
    if (!entry.eligible()) continue;
    const double finish = std::max(entry.pass, from + entry.queued()) + entry.cost(bytes);
    if (finish < best || (finish == best && entries_[winner].remote && !entry.remote)) {
      best = finish;
      winner = path;
    }
  }
  Entry& entry = entries_[winner];
  entry.pass += entry.cost(bytes);
  entry.writing += bytes;
  --entry.places;
  for (Entry& other : entries_) other.pass = std::max(other.pass, entry.pass - other.credit());
  return winner;
}

}  // namespace spillway::storage
