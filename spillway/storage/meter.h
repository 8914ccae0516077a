// Bytes moved, and time spent moving them.
#pragma once

#include <chrono>

#include "spillway/base/mutex.h"
#include "spillway/storage/path.h"

namespace spillway::storage {

/// The path's thread feeds it, any thread reads it.
class Meter {
 public:
  void begin(Direction direction);
  /// `bytes` is what the piece that ended has moved; 0 when it failed.
  void end(Direction direction, Bytes bytes);
  void begin_sync();
  void end_sync(bool succeeded);
  [[nodiscard]] Counters counters() const;

 private:
  using Clock = std::chrono::steady_clock;
  /// Measures the time with at least one piece in flight.
  struct Watch {
    unsigned in_flight = 0;
    Clock::time_point since;  ///< when in_flight left 0
    Clock::duration total{};

    void begin(Clock::time_point now);
    void end(Clock::time_point now);
    [[nodiscard]] double seconds(Clock::time_point now) const;
  };

  void begin_one(Clock::time_point now) SPILLWAY_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Clock::time_point heard_ SPILLWAY_GUARDED_BY(mutex_);  ///< when something ended, or began while nothing was under way
  Watch any_ SPILLWAY_GUARDED_BY(mutex_), read_ SPILLWAY_GUARDED_BY(mutex_);
  Watch write_ SPILLWAY_GUARDED_BY(mutex_), sync_ SPILLWAY_GUARDED_BY(mutex_);
  Bytes read_bytes_ SPILLWAY_GUARDED_BY(mutex_) = 0, written_bytes_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  std::uint64_t syncs_ SPILLWAY_GUARDED_BY(mutex_) = 0;
};

}  // namespace spillway::storage
