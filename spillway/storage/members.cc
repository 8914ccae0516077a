#include "spillway/storage/members.h"

#include <algorithm>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::storage {
namespace {

/// The assumed speed of a path of which nothing is known: the mean of the others.
Speed mean_speed(const std::vector<PoolPath>& paths) {
  Speed sum;
  double known = 0;
  for (const PoolPath& path : paths) {
    if (path.expected.read <= 0 && path.expected.write <= 0) continue;
    const Speed speed = Rate(path.expected).speed();
    sum.read += speed.read;
    sum.write += speed.write;
    known += 1;
  }
  return known > 0 ? Speed{sum.read / known, sum.write / known} : Speed{kAnySpeed, kAnySpeed};
}

}  // namespace

Members::Members(std::vector<PoolPath> paths, Bytes needed)
    : needed_(needed), striping_(paths.size()), counts_(paths.size()) {
  if (paths.empty()) throw Error(ErrorCode::bad_input, "a pool of storage paths needs at least one");
  const Speed any = mean_speed(paths);
  members_.reserve(paths.size());
  outages_.reserve(paths.size());
  for (PoolPath& path : paths) {
    const auto index = static_cast<std::uint32_t>(members_.size());
    const bool remote = path.remote;
    members_.emplace_back(std::move(path), any);
    striping_.set_speed(index, members_.back().speed());
    striping_.set_remote(index, remote);
    striping_.add_places(index, members_.back().places().free());
  }
}

bool Members::exists(Place place) const noexcept {
  return place.path < members_.size() && place.piece < members_[place.path].places().size();
}

bool Members::in_use(Place place) const noexcept {
  return !members_[place.path].places().is_free(place.piece);
}

bool Members::can_hold(std::uint64_t pieces) const noexcept {
  const Bytes room = capacity();
  return pieces * kExtentAlignment <= room && (outages_.empty() || needed_ <= room);
}

/// The path that was chosen for the last piece, which may be short, gets the last.
void Members::stripe(std::span<Place> places, Bytes bytes) {
  std::ranges::fill(counts_, 0);
  std::uint32_t last = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    last = striping_.choose(std::min(bytes, kExtentAlignment));
    ++counts_[last];
    bytes -= std::min(bytes, kExtentAlignment);
  }
  std::uint32_t next = 0;
  for (std::uint32_t index = 0; index < counts_.size(); ++index) {
    if (index != last) next = fill(places, next, index);
  }
  fill(places, next, last);
}

std::uint32_t Members::fill(std::span<Place> places, std::uint32_t next, std::uint32_t index) {
  for (std::uint32_t i = 0; i < counts_[index]; ++i) places[next++] = {index, members_[index].places().take()};
  return next;
}

void Members::put(Place place) {
  members_[place.path].places().put(place.piece);
  striping_.add_places(place.path, 1);
}

void Members::claim(Place place) {
  members_[place.path].places().take(place.piece);
  striping_.remove_place(place.path);
}

void Members::begin_read(std::uint32_t index, Bytes bytes) {
  members_[index].read_begins(bytes);
}

void Members::end(std::uint32_t index, Direction direction, Bytes bytes) {
  if (direction == Direction::read) {
    members_[index].read_ends(bytes);
  } else {
    striping_.end(index, bytes);
  }
  striping_.set_speed(index, members_[index].measure());
}

void Members::retire(const Outage& outage) {
  striping_.close(outage.path);
  outages_.push_back(outage);
}

Bytes Members::capacity() const noexcept {
  Bytes sum = 0;
  for (std::uint32_t index = 0; index < members_.size(); ++index) {
    if (writable(index)) sum += members_[index].capacity();
  }
  return sum;
}

std::vector<PathState> Members::states() const {
  std::vector<PathState> out;
  for (std::uint32_t index = 0; index < members_.size(); ++index) {
    out.push_back(members_[index].state());
    out.back().queued += striping_.queued(index);
    out.back().writable = writable(index);
  }
  return out;
}

Offer Members::offer(Bytes lacking) const {
  return {free() * kExtentAlignment, capacity(), needed_, lacking, outages_};
}

}  // namespace spillway::storage
