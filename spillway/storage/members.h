// The paths of a pool and their places: which gets the next pieces, which are retired, what is free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spillway/storage/member.h"
#include "spillway/storage/pool.h"
#include "spillway/storage/shortage.h"
#include "spillway/storage/striping_policy.h"

namespace spillway::storage {

/// The pool's mutex guards it. It allocates at construction and for outages only.
class Members {
 public:
  /// Throws what Pool's constructor does.
  Members(std::vector<PoolPath> paths, Bytes needed);

  [[nodiscard]] Path& path(std::uint32_t index) const noexcept { return members_[index].path(); }
  [[nodiscard]] bool exists(Place place) const noexcept;
  [[nodiscard]] bool in_use(Place place) const noexcept;  ///< `place` exists
  /// The free places of the paths that can be written.
  [[nodiscard]] std::uint64_t free() const noexcept { return striping_.places(); }
  /// Pieces that fit until the first of them is full, if each gets its share by speed.
  [[nodiscard]] std::uint64_t free_in_shares() const noexcept { return striping_.places_in_shares(); }
  /// Whether they could hold that many pieces if they were empty, and, after an outage, all that must be held.
  [[nodiscard]] bool can_hold(std::uint64_t pieces) const noexcept;

  /// Stripes content of that length over the paths: fills `places`, at most free(), and counts the content as queued.
  /// Pieces of one path are side by side, in memory as in its volume where places continue each other.
  void stripe(std::span<Place> places, Bytes bytes);
  void put(Place place);    ///< in use until now
  void claim(Place place);  ///< free until now

  /// A read was given to the path.
  void begin_read(std::uint32_t index, Bytes bytes);
  /// A read or a write has ended, with success or not; updates the speed of the path.
  void end(std::uint32_t index, Direction direction, Bytes bytes);

  [[nodiscard]] bool writable(std::uint32_t index) const { return striping_.is_open(index); }
  /// Gives the path no more pieces.
  void retire(const Outage& outage);
  [[nodiscard]] const std::string& name(std::uint32_t index) const { return members_[index].name(); }
  [[nodiscard]] const std::vector<Outage>& outages() const noexcept { return outages_; }
  [[nodiscard]] std::vector<PathState> states() const;
  [[nodiscard]] Offer offer(Bytes lacking = 0) const;

 private:
  [[nodiscard]] Bytes capacity() const noexcept;
  std::uint32_t fill(std::span<Place> places, std::uint32_t next, std::uint32_t index);

  Bytes needed_;
  std::vector<Member> members_;
  StripingPolicy striping_;
  std::vector<std::uint32_t> counts_;  ///< per path, of the pieces that are being striped
  std::vector<Outage> outages_;
};

}  // namespace spillway::storage
