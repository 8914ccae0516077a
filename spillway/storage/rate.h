// How fast a path is, by what it has moved lately.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "spillway/base/bytes.h"
#include "spillway/storage/path.h"

namespace spillway::storage {

/// Bytes per second of a path that is busy with nothing else.
struct Speed {
  double read = 0;
  double write = 0;
};

/// Bytes per second of a path that nobody knows anything of; only its ratio to others counts.
inline constexpr double kAnySpeed = 500e6;

/// The mean over the slower half of a sliding window of busy time. The faster half says little: a drive that has had a
/// rest answers from its cache, and far above what it can keep up. Nor does the slowest stretch: a drive that stops for
/// once is not a slow drive. Each direction has its own window and its own busy time, so that a phase of reading says
/// nothing of writing; where both go on at once, the time counts for both, and each is as fast as the other lets it be.
/// Pure: no clock, no lock, no allocation.
class Rate {
 public:
  /// What counts before anything was measured. 0: unknown, and taken to be as fast as the other direction; `any` when
  /// both are.
  explicit Rate(const Speed& expected, const Speed& any = {kAnySpeed, kAnySpeed});

  /// That much was completed in that direction, while for `seconds` something was under way in it.
  void add(Direction direction, Bytes bytes, double seconds);

  [[nodiscard]] Speed speed() const noexcept { return {1 / read_.cost, 1 / write_.cost}; }

  /// Bytes of one direction in an entry of the window, at least; and the seconds.
  static constexpr Bytes kEntryBytes = 8 * MiB;
  static constexpr double kEntrySeconds = 0.05;
  /// Entries in the window; as few as `kFewest` move the rate.
  static constexpr std::size_t kEntries = 8;
  static constexpr std::size_t kFewest = 4;

 private:
  struct Entry {
    double bytes = 0;
    double seconds = 0;
    [[nodiscard]] double cost() const noexcept { return seconds / bytes; }
  };
  struct Window {
    double cost;   ///< seconds per byte
    bool guessed;  ///< neither expected nor measured
    Entry open;    ///< not yet large enough
    std::array<Entry, kEntries> entries = {};
    std::size_t count = 0;  ///< entries ever closed

    void add(double bytes, double seconds);
    [[nodiscard]] double mean() const noexcept;
  };

  void guess() noexcept;

  Window read_;
  Window write_;
};

}  // namespace spillway::storage
