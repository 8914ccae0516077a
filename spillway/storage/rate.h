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

/// The mean over a sliding window of busy time, without the best and the worst stretch in it: a drive that stops for
/// once is not a slow drive. Each direction has its own window, so that a phase of reading says nothing of writing.
/// Pure: no clock, no lock, no allocation.
class Rate {
 public:
  /// What counts before anything was measured. 0: unknown, and taken to be as fast as the other direction; `any` when
  /// both are.
  explicit Rate(const Speed& expected, const Speed& any = {kAnySpeed, kAnySpeed});

  /// The path was busy for `seconds` and completed that much, part of a direction or of both. Time with both belongs to
  /// each in proportion to what it was expected to need: two directions that hinder each other look slow, two that do
  /// not look as fast as they are together.
  void add(Bytes read, Bytes written, double seconds);

  [[nodiscard]] Speed speed() const noexcept { return {1 / read_.cost, 1 / write_.cost}; }

  /// Bytes of one direction in an entry of the window, at least; and the seconds.
  static constexpr Bytes kEntryBytes = 8 * MiB;
  static constexpr double kEntrySeconds = 0.01;
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

  /// A stretch too short to say how it divides between the directions.
  struct Stretch {
    Bytes read = 0;
    Bytes written = 0;
    double seconds = 0;
  };

  void guess() noexcept;

  Window read_;
  Window write_;
  Stretch stretch_;
};

}  // namespace spillway::storage
