// A ring that acknowledges what it did not do, for tests of what must notice that.
//
// `Lies` is the test's side: it scripts which reads and writes of a file are lost, land elsewhere, come late, or give
// what the file held before. Every piece that is lied about ends as if it had been done. `faulty` injects errors that
// are told; this ring injects errors that are not. `power_cut` has flushes that lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/base/mutex.h"
#include "spillway/sys/ring.h"

namespace spillway::sys {

/// What happens to a piece instead of what it asked for.
enum class Lie : std::uint8_t {
  lost,         ///< nothing moves: a write leaves the file, a read leaves the memory as it was
  misdirected,  ///< the bytes move to or from another offset of the file
  late,         ///< of writes: it takes place after some other pieces, over whatever they wrote
  stale,        ///< of reads: the bytes are those of an older image of the file
};

/// The pieces that are lied about: those of one operation that begin in a range of the file.
struct LieRule {
  Lie lie = Lie::lost;
  Operation operation = Operation::write;  ///< not a sync
  Bytes first = 0, last = ~Bytes{0};       ///< offsets, `last` not included
  std::uint64_t skip = 0;                  ///< pieces that are served before
  std::uint64_t times = 1;                 ///< pieces that are lied about then
  std::uint64_t distance = 0;        ///< misdirected: added to the offset, modulo 2^64; late: pieces that come first
  std::filesystem::path image = {};  ///< stale: the older image
};

/// Safe to use from any thread. Several rings may share one object; its rules count the pieces of all of them.
class Lies {
 public:
  void add(const LieRule& rule);
  /// Pieces that were lied about, in all.
  [[nodiscard]] std::uint64_t count() const;
  /// Late writes that have not taken place.
  [[nodiscard]] std::size_t late_writes() const;

 private:
  friend class LyingRing;
  struct LateWrite {
    const void* ring = nullptr;  ///< that it belongs to
    Bytes offset = 0;
    std::vector<std::byte> bytes;
    std::uint64_t patience = 0;  ///< pieces of that ring that come first
  };
  [[nodiscard]] std::optional<LieRule> take_rule(const Piece& piece);
  void add_late_write(LateWrite write);
  /// The late writes of a ring that are due after one more piece.
  [[nodiscard]] std::vector<LateWrite> take_due(const void* ring);

  mutable Mutex mutex_;
  std::vector<LieRule> rules_ SPILLWAY_GUARDED_BY(mutex_);
  std::vector<LateWrite> late_writes_ SPILLWAY_GUARDED_BY(mutex_);
  std::uint64_t lie_count_ SPILLWAY_GUARDED_BY(mutex_) = 0;
};

/// A factory of rings that `inner` makes and `lies` spoils. Without a rule the fake behaves as the inner ring.
[[nodiscard]] RingFactory lying(RingFactory inner, std::shared_ptr<Lies> lies);

}  // namespace spillway::sys
