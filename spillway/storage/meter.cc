#include "spillway/storage/meter.h"

namespace spillway::storage {

void Meter::Watch::begin(Clock::time_point now) {
  if (in_flight++ == 0) since = now;
}

void Meter::Watch::end(Clock::time_point now) {
  if (--in_flight == 0) total += now - since;
}

double Meter::Watch::seconds(Clock::time_point now) const {
  const Clock::duration running = in_flight > 0 ? now - since : Clock::duration{};
  return std::chrono::duration<double>(total + running).count();
}

void Meter::begin(Direction direction) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  any_.begin(now);
  (direction == Direction::read ? read_ : write_).begin(now);
}

void Meter::end(Direction direction, Bytes bytes) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  any_.end(now);
  (direction == Direction::read ? read_ : write_).end(now);
  (direction == Direction::read ? read_bytes_ : written_bytes_) += bytes;
}

void Meter::begin_sync() {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  sync_.begin(now);
}

void Meter::end_sync(bool succeeded) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  sync_.end(now);
  if (succeeded) ++syncs_;
}

Counters Meter::counters() const {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  return {read_bytes_,         written_bytes_, any_.seconds(now), read_.seconds(now),
          write_.seconds(now), syncs_,         sync_.seconds(now)};
}

}  // namespace spillway::storage
