// A load on a storage path: a fixed number of transfers outstanding, and what came of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <mutex>
#include <span>
#include <vector>

#include "spillway/storage/path.h"

namespace spillway::machine {

/// What a load moved. Rates are of bytes completed over the whole time.
struct LoadResult {
  double seconds = 0;
  double cpu_seconds = 0;  ///< of the whole process
  Bytes read = 0;
  Bytes written = 0;

  [[nodiscard]] double read_rate() const { return static_cast<double>(read) / seconds; }
  [[nodiscard]] double write_rate() const { return static_cast<double>(written) / seconds; }
  [[nodiscard]] double rate() const { return read_rate() + write_rate(); }
};

/// Streams, each with one transfer outstanding, that go through an area of the volume in order, again and again; no
/// place is ever of two streams. The area is written over; to be read it must have been written at the same size of
/// transfer, or at another multiple of 1 MiB.
class Load {
 public:
  struct Area {
    Bytes offset = 0;  ///< in extent space, multiple of 1 MiB
    Bytes bytes = 0;   ///< at least `transfer` per stream; what is over a multiple of `transfer` stays unused
  };

  /// `memory` holds one transfer per stream. `transfer` is a multiple of 1 MiB.
  Load(storage::Path& path, std::span<std::byte> memory, Area area, Bytes transfer);

  /// `readers` read and `writers` write for at least that long (every stream moves something).
  LoadResult run(std::size_t readers, std::size_t writers, double seconds);
  /// Runs the load for a quarter of that time before anything is counted, and leaves out what ends after it: what a
  /// drive keeps up, without the burst that it takes first. What was moved in all where that is nothing.
  LoadResult steady(std::size_t readers, std::size_t writers, double seconds);
  /// `writers` write the whole area once.
  LoadResult fill(std::size_t writers);

 private:
  using Clock = std::chrono::steady_clock;
  struct Stream {
    Load* load;
    storage::Direction direction;
    std::byte* memory;
    Bytes first, next;  ///< offsets
  };

  struct Sample {
    Clock::time_point at;
    double cpu = 0;
    storage::Counters counters;
  };

  LoadResult go(std::size_t readers, std::size_t writers);
  [[nodiscard]] Sample look() const;
  [[nodiscard]] static LoadResult between(const Sample& first, const Sample& last);
  void begin(std::size_t readers, std::size_t writers);
  Sample finish();
  void divide(std::size_t readers, std::size_t writers);
  void start(Stream& stream);
  void fail(const std::exception_ptr& error) noexcept;
  [[nodiscard]] bool failed() const noexcept;
  static void done(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept;

  storage::Path& path_;
  std::span<std::byte> memory_;
  Area area_;
  Bytes transfer_;
  bool once_ = false;
  Bytes stride_ = 0;  ///< from one transfer of a stream to its next
  Bytes last_ = 0;    ///< end of what is used of the area
  Clock::time_point end_;
  std::vector<Stream> streams_;
  mutable std::mutex mutex_;
  std::exception_ptr failure_;  ///< the first; guarded by mutex_
};

}  // namespace spillway::machine
