// Which path the next piece goes to: the one that is expected to finish it first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/storage/path.h"
#include "spillway/storage/rate.h"

namespace spillway::storage {

/// Deals pieces to unequal paths by `max(turn, queued) + cost`. `cost`: the seconds a path needs to write the piece and
/// to read it back once. `turn`: the clock of a stride scheduler, which moves on by the cost of each piece that is
/// dealt, so that paths get shares in proportion to their speed. `queued`: the seconds of writes that a path has not
/// finished, so that a path that is behind is spared before its rate is known to have changed.
///
/// Reads that are queued do not count. They are where earlier writes went: a deal that shunned them would write less to
/// a path the more is read from it, leave holes that the next round of reads finds, and swing for many rounds.
///
/// Pure: no clock, no lock, nothing allocated after construction; the same calls deal the same way.
class Dealer {
 public:
  /// Open paths without a place and with a speed of 1.
  explicit Dealer(std::size_t paths);

  void set_speed(std::uint32_t path, const Speed& speed);  ///< both > 0
  /// Of paths that would finish a piece at once, those that are not far get it.
  void set_far(std::uint32_t path, bool far) { lanes_[path].far = far; }
  /// No piece goes there any more.
  void close(std::uint32_t path);
  [[nodiscard]] bool is_open(std::uint32_t path) const { return lanes_[path].open; }

  /// Places that a path can give; a closed one gives none.
  void add_places(std::uint32_t path, std::uint64_t count);
  void remove_place(std::uint32_t path);  ///< one that `deal` does not know of
  /// Places of all open paths.
  [[nodiscard]] std::uint64_t places() const noexcept;

  /// The path that writes the next piece, of that length; it has queued it, and has a place less. Needs places() > 0.
  [[nodiscard]] std::uint32_t deal(Bytes bytes);
  /// A write has ended, well or not.
  void end(std::uint32_t path, Bytes bytes) { lanes_[path].writing -= bytes; }
  [[nodiscard]] Bytes queued(std::uint32_t path) const { return lanes_[path].writing; }

  /// A path that was passed over because it was behind or full gets back at most so many seconds of what it missed.
  static constexpr double kMostCredit = 0.05;

 private:
  struct Lane {
    double read_cost = 1, write_cost = 1;  ///< seconds per byte
    double turn = 0;                       ///< seconds on the common clock
    Bytes writing = 0;                     ///< queued
    std::uint64_t places = 0;
    bool open = true;
    bool far = false;

    [[nodiscard]] bool deals() const noexcept { return open && places > 0; }
    [[nodiscard]] double cost(Bytes bytes) const noexcept {
      return (read_cost + write_cost) * static_cast<double>(bytes);
    }
    [[nodiscard]] double queued() const noexcept { return write_cost * static_cast<double>(writing); }
    /// How far it may fall behind the path that was dealt last.
    [[nodiscard]] double credit() const noexcept { return std::max(kMostCredit, cost(kExtentAlignment)); }
  };

  [[nodiscard]] double now() const noexcept;

  std::vector<Lane> lanes_;
};

}  // namespace spillway::storage
