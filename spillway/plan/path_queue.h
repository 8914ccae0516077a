// Transfers of one direction that wait for the storage paths or are in flight, as the simulation sees them.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::plan {

/// Bytes of each path that were handed to its drive and have not ended, while more wait (as a storage::Path's
/// `queue_depth` pieces). A drive serves them in the order in which it got them: what is urgent now waits for them.
inline constexpr Bytes kHandedOver = 16 * MiB;

/// Fluid: a path's pieces are small beside what it has in flight. The most urgent transfer that waits is handed over
/// as soon as less than `most` bytes are in flight, in whatever parts that takes; what was handed over is served in
/// that order. So an urgent one overtakes all that waits, also the rest of one that has begun, and waits for `most`
/// bytes, not more. Each transfer is a number of the caller's.
class PathQueue {
 public:
  /// A transfer of so many bytes is ready. The lower the deadline, the more urgent; of equals the lower number.
  void add(std::uint64_t deadline, std::size_t transfer, double bytes, double most);
  /// Hands over what `most` bytes in flight allow, one transfer at least. Returns those that have begun with that, or
  /// since the last call; one that comes twice was taken back in between.
  const std::vector<std::size_t>& hand_over(double most);

  /// Nothing is in flight (after hand_over(): and nothing waits).
  [[nodiscard]] bool idle() const noexcept { return handed_.empty(); }
  /// True if anything waits or is in flight.
  [[nodiscard]] bool any() const noexcept { return !handed_.empty() || !waiting_.empty(); }
  /// Until the next part has moved.
  [[nodiscard]] double next_bytes() const noexcept { return handed_.front().bytes; }
  /// So many have moved, at most next_bytes(). Returns the transfer that has ended with that.
  std::optional<std::size_t> move(double bytes);

 private:
  struct Key {
    std::uint64_t deadline = 0;
    std::size_t transfer = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Waiting {
    double bytes = 0;
    bool begun = false;  ///< a part was handed over
  };
  struct Part {
    Key key;
    double bytes = 0;    ///< that are left
    bool first = false;  ///< of its transfer
  };

  void fill(double most);
  /// Takes back what the drives would not have yet.
  void take_back(double most);

  std::map<Key, Waiting> waiting_;
  std::deque<Part> handed_;
  double in_flight_ = 0;
  std::vector<std::size_t> begun_, told_;
};

}  // namespace spillway::plan
