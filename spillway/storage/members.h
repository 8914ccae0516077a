// The paths of a pool and their places: who gets the next pieces, who is out, what is free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spillway/storage/dealer.h"
#include "spillway/storage/member.h"
#include "spillway/storage/pool.h"
#include "spillway/storage/shortage.h"

namespace spillway::storage {

/// Guarded by its pool's mutex. Allocates at construction and for outages only.
class Members {
 public:
  /// Throws what Pool's constructor does.
  Members(std::vector<PoolPath> paths, Bytes needed);

  [[nodiscard]] Path& path(std::uint32_t index) const noexcept { return members_[index].path(); }
  [[nodiscard]] bool exists(Place place) const noexcept;
  [[nodiscard]] bool in_use(Place place) const noexcept;  ///< `place` exists
  /// Free places of the paths that can be written.
  [[nodiscard]] std::uint64_t free() const noexcept { return dealer_.places(); }
  /// Whether they could hold that many pieces if they were empty, and, after an outage, all that must be held.
  [[nodiscard]] bool can_hold(std::uint64_t pieces) const noexcept;

  /// Fills `places`, at most free(), for content of that length; the paths count it as queued. Pieces of one path are
  /// side by side, in memory as in its volume where places continue each other.
  void deal(std::span<Place> places, Bytes bytes);
  void put(Place place);    ///< in use until now
  void claim(Place place);  ///< free until now

  /// Of work that was not dealt.
  void begin_read(std::uint32_t index, Bytes bytes);
  /// Work has ended, well or not; looks at how fast the path is.
  void end(std::uint32_t index, Direction direction, Bytes bytes);

  [[nodiscard]] bool writable(std::uint32_t index) const { return dealer_.is_open(index); }
  /// No more pieces for that path.
  void take_out(const Outage& outage);
  [[nodiscard]] const std::string& name(std::uint32_t index) const { return members_[index].name(); }
  [[nodiscard]] const std::vector<Outage>& outages() const noexcept { return outages_; }
  [[nodiscard]] std::vector<PathState> states() const;
  [[nodiscard]] Offer offer() const;

 private:
  [[nodiscard]] Bytes capacity() const noexcept;
  std::uint32_t fill(std::span<Place> places, std::uint32_t next, std::uint32_t index);

  Bytes needed_;
  std::vector<Member> members_;
  Dealer dealer_;
  std::vector<std::uint32_t> counts_;  ///< per path, of the pieces that are being dealt
  std::vector<Outage> outages_;
};

}  // namespace spillway::storage
