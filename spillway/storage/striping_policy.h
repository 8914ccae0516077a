// The striping policy of a pool: the next piece goes to the path that is expected to finish it first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/storage/path.h"
#include "spillway/storage/rate.h"

namespace spillway::storage {

/// Pieces are striped over unequal paths by the smallest `max(pass, queued) + cost`. `cost` is the seconds that a path
/// needs to write the piece and to read it back once. `pass` is the virtual time of a stride scheduler: it moves on by
/// the cost of each piece that the path gets, so that paths get shares in proportion to their speed. `queued` is the
/// seconds of writes that a path has not finished, so that a path that is behind is spared before its rate is known to
/// have changed.
///
/// Queued reads do not count. They are where earlier writes went: a policy that shunned them would write less to a path
/// the more is read from it, leave holes that the next round of reads finds, and oscillate for many rounds.
///
/// The policy has no clock and no lock, and allocates nothing after construction; the same calls give the same choices.
class StripingPolicy {
 public:
  /// Every path begins open, without a place, and with a speed of 1.
  explicit StripingPolicy(std::size_t paths);

  void set_speed(std::uint32_t path, const Speed& speed);  ///< both > 0
  /// Where several paths would finish a piece at the same time, one that is not remote gets it.
  void set_remote(std::uint32_t path, bool remote) { entries_[path].remote = remote; }
  /// The path gets no more pieces.
  void close(std::uint32_t path);
  [[nodiscard]] bool is_open(std::uint32_t path) const { return entries_[path].open; }

  /// The path has so many free places more; those of a closed path are not used.
  void add_places(std::uint32_t path, std::uint64_t count);
  void remove_place(std::uint32_t path);  ///< somebody else took it
  /// The free places of all open paths.
  [[nodiscard]] std::uint64_t places() const noexcept;
  /// Pieces that fit until the first open path is full, if each path gets its share by speed.
  [[nodiscard]] std::uint64_t places_in_shares() const noexcept;

  /// Chooses the path that writes the next piece, of that length. The piece counts as queued there, and takes one of
  /// the path's places. places() must be > 0.
  [[nodiscard]] std::uint32_t choose(Bytes bytes);
  /// A write of that length has ended, with success or not.
  void end(std::uint32_t path, Bytes bytes) { entries_[path].writing -= bytes; }
  [[nodiscard]] Bytes queued(std::uint32_t path) const { return entries_[path].writing; }

  /// A path that was passed over because it was behind or full gets back at most so many seconds of its lost share.
  static constexpr double kMostCredit = 0.05;

 private:
  struct Entry {
    double read_cost = 1, write_cost = 1;  ///< seconds per byte
    double pass = 0;                       ///< seconds of virtual time
    Bytes writing = 0;                     ///< queued
    std::uint64_t places = 0;
    bool open = true;
    bool remote = false;

    [[nodiscard]] bool eligible() const noexcept { return open && places > 0; }
    [[nodiscard]] double cost(Bytes bytes) const noexcept {
      return (read_cost + write_cost) * static_cast<double>(bytes);
    }
    /// Share of a path, relative to the other paths.
    [[nodiscard]] double weight() const noexcept { return 1 / (read_cost + write_cost); }
    [[nodiscard]] double queued() const noexcept { return write_cost * static_cast<double>(writing); }
    /// How many seconds it may fall behind the path that was chosen last.
    [[nodiscard]] double credit() const noexcept { return std::max(kMostCredit, cost(kExtentAlignment)); }
  };

  [[nodiscard]] double now() const noexcept;

  std::vector<Entry> entries_;
};

}  // namespace spillway::storage
