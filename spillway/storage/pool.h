// Several unequal paths as one store of pieces.
//
// A write is cut into pieces of 1 MiB, and each goes to a free place on the path that is expected to finish it first,
// by rates that are measured while running (StripingPolicy, Rate). Its owner gets the list of places, reads by it, and
// gives it back when nobody needs the bytes any more. A path that fails a write is retired: what it refused goes to the
// others, what it holds is still read.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/storage/path.h"
#include "spillway/storage/place.h"
#include "spillway/storage/rate.h"

namespace spillway::storage {

/// One path of a pool. The pool owns all of its extents: nobody else allocates or writes there.
struct PoolPath {
  Path* path = nullptr;  ///< outlives the pool
  Bytes capacity = 0;    ///< of its volume; what is over a multiple of 1 MiB stays unused
  Speed expected = {};   ///< bytes per second, from the profile; 0: unknown
  std::string name;      ///< shown as path:NAME
  bool remote = false;   ///< on a remote NUMA node: of paths that would finish at the same time, another is taken
};

/// A path that was retired: it gets no more writes.
struct Outage {
  std::uint32_t path = 0;
  std::string name;
  int errno_value = 0;  ///< 0: it was not the operating system
  Bytes bytes = 0;      ///< of the write that failed; 0: it was not a write
  std::string reason;   ///< for the user: what failed, what goes on
};

/// How one path of a pool stands.
struct PathState {
  std::string name;
  Bytes capacity = 0;
  Bytes free = 0;
  Bytes queued = 0;  ///< given to it and not ended
  Speed speed;       ///< that the striping policy goes by: measured, or expected as long as nothing was measured
  Counters moved;
  bool writable = true;
};

struct PoolOptions {
  /// The bytes that the paths must hold at once; 0: unknown. When outages leave less than that, writes end with an
  /// Error at once, and not when the last place is gone.
  Bytes needed = 0;
  /// A write has begun to wait for free places; the owner should hurry with what lets it release some.
  std::function<void()> on_scarce = {};
  /// A path was retired.
  std::function<void(const Outage&)> on_outage = {};
};

/// Thread safe. Listeners (Done, on_scarce, on_outage) are called on the paths' threads or on the thread that calls
/// `start`, `release`, `retire`, `close` or the destructor, without a lock of the pool: they must be short,
/// must not throw, and may start and release. Nothing is allocated once as many requests have been under way as ever
/// will.
class Pool {
 public:
  /// Two writes of which one is of no use without the other. Whichever comes first is placed when there is room for
  /// both, and the other one waits for nobody: its places are reserved, or it is placed together with the first. Both
  /// must come, in any order; then two more may. The owner keeps the pair until all have ended, and does not look into
  /// it.
  struct Pair {
    static constexpr std::uint32_t kNone = ~std::uint32_t{0};
    bool half = false;            ///< one has come
    std::uint32_t waits = kNone;  ///< the request that has come and waits
    std::uint32_t reserved = 0;   ///< places for the one that is to come
  };

  /// Writes that have to be placed before others may take the last places, because only they let places become free.
  /// The owner keeps the group as long as the pool, or until all of it have ended, and does not look into it.
  struct Group {
    std::uint64_t left = 0;  ///< places of those that are to come
    bool reserved = false;   ///< no other write gets these places
  };

  struct Request {
    Direction direction = Direction::read;
    std::byte* memory = nullptr;   ///< aligned to kTransferAlignment; untouched by the caller until Done
    Bytes bytes = 0;               ///< > 0, multiple of kTransferAlignment
    std::span<Place> places = {};  ///< one per MiB begun. Read: where it lies. Write: filled in before Done, which it
                                   ///< must outlive; after an error the places are free again
    std::uint64_t deadline = 0;    ///< smaller is served first; equal: in order of arrival
    Done done = nullptr;           ///< once, when every piece has ended; with the first error
    void* context = nullptr;
    std::uint64_t token = 0;
    Pair* pair = nullptr;                ///< of a write: which it belongs to; must outlive both writes
    std::uint32_t more = 0;              ///< places that the other write of the pair takes
    Group* group = nullptr;              ///< of a write: which it belongs to
    std::string_view what = {};          ///< names the content in errors; must outlive the request
    std::uint32_t* last_path = nullptr;  ///< if given: set before Done to the path whose piece ended last
  };

  /// Every place is free. Throws Error(bad_input) for no path, or one without capacity.
  explicit Pool(std::vector<PoolPath> paths, PoolOptions options = {});
  /// Ends waiting writes with an error, waits for the rest.
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Never blocks on a drive. A write without enough free places waits, in order of deadline, until some are released.
  /// Throws Error(internal) for a malformed request, and for a write that the paths that can still be written cannot
  /// hold even when empty Error(does_not_fit), or Error(io) with the errno when that is so because of an outage.
  void start(const Request& request);
  /// Starts a request and waits for its end; throws its error. Not from a listener. Overwrites done and context.
  void run(Request request);
  /// The group's writes will take that many places from now on. What was left of it before is forgotten.
  void expect(Group& group, std::uint64_t places);
  /// Keeps free places for those of the group that have not been started yet.
  void reserve(Group& group);
  /// Makes the places free. Throws Error(internal) when one was free already.
  void release(std::span<const Place> places);
  /// Marks a place as in use from before; to be called before the first start. Throws Error(internal) when it does not
  /// exist or was claimed.
  void claim(Place place);
  /// Gives the path no more writes, for a reason found elsewhere (its flush or its records failed).
  void retire(std::uint32_t path, int errno_value, std::string_view reason);
  /// Every write that waits, and every later one, ends with an error: that reason, or that it was closed; reads go on.
  void close(std::exception_ptr reason = nullptr);
  /// Every write that waits ends with the Error of one that the paths cannot hold: for an owner who knows that nobody
  /// will release what it waits for (stalled()).
  void refuse_waiting();
  /// Waits until every request has ended. A waiting write ends only if another thread releases or closes.
  void drain();

  [[nodiscard]] Bytes free() const;  ///< on paths that can be written, and not reserved
  /// Bytes that can be written until the first path is full, if each path gets its share by speed; at most free().
  [[nodiscard]] Bytes free_in_shares() const;
  [[nodiscard]] Bytes waiting() const;  ///< places that waiting writes want, as bytes
  /// The number of requests under way when each of them waits for places, no transfer is under way and no listener is
  /// being called, so that nothing goes on before somebody releases; otherwise 0.
  [[nodiscard]] std::size_t stalled() const;
  [[nodiscard]] std::vector<PathState> paths() const;
  [[nodiscard]] std::vector<Outage> outages() const;  ///< in the order in which they came

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::storage
