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

void Meter::begin_one(Clock::time_point now) {
  if (any_.in_flight + sync_.in_flight == 0) heard_ = now;
}

void Meter::begin(Direction direction) {
  const auto now = Clock::now();
  const MutexLock lock(mutex_);
  begin_one(now);
  any_.begin(now);
  (direction == Direction::read ? read_ : write_).begin(now);
}

void Meter::end(Direction direction, Bytes bytes) {
  const auto now = Clock::now();
  const MutexLock lock(mutex_);
  heard_ = now;
  any_.end(now);
  (direction == Direction::read ? read_ : write_).end(now);
  (direction == Direction::read ? read_bytes_ : written_bytes_) += bytes;
}

void Meter::begin_sync() {
  const auto now = Clock::now();
  const MutexLock lock(mutex_);
  begin_one(now);
  sync_.begin(now);
}

void Meter::end_sync(bool succeeded) {
  const auto now = Clock::now();
  const MutexLock lock(mutex_);
  heard_ = now;
  sync_.end(now);
  if (succeeded) ++syncs_;
}

Counters Meter::counters() const {
  const MutexLock lock(mutex_);
  const auto now = Clock::now();
  const unsigned under_way = any_.in_flight + sync_.in_flight;
  return {.read = read_bytes_,
          .written = written_bytes_,
          .busy_seconds = any_.seconds(now),
          .read_seconds = read_.seconds(now),
          .write_seconds = write_.seconds(now),
          .syncs = syncs_,
          .sync_seconds = sync_.seconds(now),
          .under_way = under_way,
          .silent_seconds = under_way > 0 ? std::chrono::duration<double>(now - heard_).count() : 0};
}

}  // namespace spillway::storage
