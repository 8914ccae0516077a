// A ring that simulates a power cut, for tests of what must survive one.
//
// `PowerCut` is the test's side. It watches every piece of every ring that shares it, decides after which of them the
// machine is without power, and says what each file may hold then. Three things are promised of a drive and no more:
//
//   - a sync that has completed makes durable every write that had completed when the sync was submitted;
//   - any other write may be there, or not, or in part, torn at 512 bytes;
//   - of such writes to the same sector any one may be the one that is there, or none.
//
// What a file holds when its ring is made counts as durable: volumes are created by other means and flushed. Syncs are
// not passed on to the ring below, so that a run is fast on any drive; each ends after a few other pieces have. Put
// `faulty` around this ring, not into it.
//
// An object is good for one cut. The file itself is no witness: the ring below goes on after the cut. A test gives the
// next life files that hold `image`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/base/mutex.h"
#include "spillway/sys/ring.h"
#include "spillway/sys/sparse_bytes.h"

namespace spillway::sys {

/// Safe to use from any thread.
class PowerCut {
 public:
  /// Seeds of `image` with a meaning of their own: of what no sync covers, nothing is there, or everything (of several
  /// writes to a sector, the last submitted).
  static constexpr std::uint64_t kNothing = 0;
  static constexpr std::uint64_t kEverything = ~std::uint64_t{0};

  /// The `events`-th event from the beginning is the last: an event is a piece submitted or a completion handed out, by
  /// any ring. From then on no piece takes effect, pending ones included, and each ends with -EIO. 0: cut at once.
  void cut_after(std::uint64_t events);
  /// A server that restarts without what it had said was flushed: from this sync on, counted from 0 over the files that
  /// lie, syncs end well and make nothing durable. `file`: the only one that lies; without it all do.
  void lie_from(std::uint64_t sync, std::filesystem::path file = {});
  /// Syncs that lied.
  [[nodiscard]] std::uint64_t false_syncs() const;
  /// Events so far.
  [[nodiscard]] std::uint64_t events() const;
  [[nodiscard]] bool is_cut() const;

  /// What the file may hold if the power is (or were) cut now; the same seed gives the same bytes. Throws
  /// Error(internal) when no ring was made for that file.
  [[nodiscard]] SparseBytes image(const std::filesystem::path& file, std::uint64_t seed) const;

 private:
  friend class PowerCutRing;

  using Ids = std::vector<std::uint64_t>;
  /// A write that no sync has covered.
  struct Write {
    std::uint64_t id = 0;  ///< in order of submission
    Bytes offset = 0;
    std::vector<std::byte> bytes;
    bool completed = false;
    std::size_t moved = 0;  ///< of its bytes, once completed
  };
  struct Volume {
    std::uint64_t number = 0;  ///< in order of their rings
    SparseBytes durable;
    std::vector<Write> writes;  ///< by id

    [[nodiscard]] Ids completed() const;
    void complete(std::uint64_t id, std::int32_t result);
    void make_durable(const Ids& ids);
  };

  Volume* watch(const File& file);
  /// Counts one more; false: the power is off.
  bool count_event() SPILLWAY_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::filesystem::path, Volume> volumes_ SPILLWAY_GUARDED_BY(mutex_);
  std::uint64_t events_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  std::uint64_t last_ SPILLWAY_GUARDED_BY(mutex_) = ~std::uint64_t{0};
  std::uint64_t writes_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  /// Whether a sync of that file makes nothing durable.
  [[nodiscard]] bool lies_about(const std::filesystem::path& file) SPILLWAY_REQUIRES(mutex_);
  std::uint64_t first_lie_ SPILLWAY_GUARDED_BY(mutex_) = ~std::uint64_t{0};
  std::uint64_t syncs_ SPILLWAY_GUARDED_BY(mutex_) = 0;  ///< of files that lie
  std::uint64_t false_syncs_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  std::filesystem::path liar_ SPILLWAY_GUARDED_BY(mutex_);
};

/// A factory of rings that `inner` makes and `power` watches.
[[nodiscard]] RingFactory power_cut(RingFactory inner, std::shared_ptr<PowerCut> power);

}  // namespace spillway::sys
