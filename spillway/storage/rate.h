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

/// What a path can keep up is at most what it moved in a busy second, and at least what it moved in a second, idle
/// moments included. Where it was never idle the two are the same, and are the rate. Else it may be either: a path that
/// is asked for little moves little, and one that has had a rest answers from its cache, or from what its limit had
/// saved up, far above what it can keep up. Then a rate stands as long as it is between the two; and it grows, slowly,
/// to `kHeadroom` times what the path moves, so that more is asked of it, until it is busy or known to be no faster.
///
/// Both are taken from a sliding window. The busy second is that of the slower half without the slowest stretch, so
/// that bursts do not count, nor a drive that stops for once. Each direction has its own window, so that a phase of
/// reading says nothing of writing; where both go on at once, each is as fast as the other lets it be.
///
/// It has no clock and no lock, and allocates nothing.
class Rate {
 public:
  /// What counts before anything was measured. 0: unknown, and taken to be as fast as the other direction; `any` when
  /// both are.
  explicit Rate(const Speed& expected, const Speed& any = {kAnySpeed, kAnySpeed});

  /// That much was completed in that direction, while for `busy` seconds something was under way in it, and nothing for
  /// `idle` seconds.
  void add(Direction direction, Bytes bytes, double busy, double idle = 0);

  [[nodiscard]] Speed speed() const noexcept { return {1 / read_.cost, 1 / write_.cost}; }

  /// A path that was busy for that part of the time was never idle.
  static constexpr double kBusy = 0.98;
  /// The rate of one that was idle at times grows so much with every entry, and up to so many times what it moves. More
  /// finds a path that has become faster sooner, and takes bursts for speed more often.
  static constexpr double kGrowth = 1.05, kHeadroom = 1.5;
  /// Bytes of one direction in an entry of the window, at least; and the seconds, idle or busy.
  static constexpr Bytes kEntryBytes = 8 * MiB;
  static constexpr double kEntrySeconds = 0.05;
  /// Entries in the window; as few as `kFewest` move the rate.
  static constexpr std::size_t kEntries = 8;
  static constexpr std::size_t kFewest = 4;

 private:
  struct Entry {
    double bytes = 0;
    double busy = 0, idle = 0;  ///< seconds
    [[nodiscard]] double cost() const noexcept { return busy / bytes; }
  };
  struct Window {
    double cost;   ///< seconds per byte
    bool guessed;  ///< neither expected nor measured
    Entry open;    ///< not yet large enough
    std::array<Entry, kEntries> entries = {};
    std::size_t count = 0;  ///< entries ever closed

    void add(double bytes, double busy, double idle);
    void move() noexcept;
    [[nodiscard]] double busy_cost() const noexcept;
    [[nodiscard]] Entry sum() const noexcept;
  };

  void guess() noexcept;

  Window read_;
  Window write_;
};

}  // namespace spillway::storage
