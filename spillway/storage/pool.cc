#include "spillway/storage/pool.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/base/mutex.h"
#include "spillway/storage/deferred_callbacks.h"
#include "spillway/storage/members.h"
#include "spillway/storage/requests.h"
#include "spillway/storage/shortage.h"
#include "spillway/storage/slots.h"
#include "spillway/storage/waiter.h"

namespace spillway::storage {
namespace {

/// So many requests and runs at once need no allocation.
constexpr std::size_t kPoolReserve = 4096;
/// A transfer has at most so many pieces: the fewer, the better a path's queue is known.
constexpr std::uint32_t kLongestRun = 8;
constexpr Place kNowhere = {std::numeric_limits<std::uint32_t>::max(), std::numeric_limits<std::uint32_t>::max()};

[[noreturn]] void refuse(const Pool::Request& request, const std::string& reason) {
  throw Error(ErrorCode::internal, text(request.what.empty() ? "a request" : request.what, " of ", request.bytes,
                                        " bytes in ", request.places.size(), " places: ", reason));
}

[[noreturn]] void refuse(Place place, std::string_view action, std::string_view reason) {
  throw Error(ErrorCode::internal,
              text("piece ", place.piece, " of storage path ", place.path, " was ", action, ", but it ", reason));
}

void require_well_formed(const Pool::Request& request) {
  if (request.bytes == 0 || request.bytes % kTransferAlignment != 0) refuse(request, "its length is not aligned");
  if (reinterpret_cast<std::uintptr_t>(request.memory) % kTransferAlignment != 0 || request.memory == nullptr) {
    refuse(request, "its memory is not aligned");
  }
  if (request.places.size() != ceil_div(request.bytes, kPoolPiece)) refuse(request, "it needs one place per MiB begun");
  if (request.done == nullptr) refuse(request, "nobody is told of its end");
}

}  // namespace

class Pool::Impl {
 public:
  Impl(std::vector<PoolPath> paths, PoolOptions options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void start(const Request& request);
  void expect(Group& group, std::uint64_t places);
  void reserve(Group& group);
  void release(std::span<const Place> places);
  void claim(Place place);
  void retire(std::uint32_t path, int errno_value, std::string_view reason);
  void close(std::exception_ptr reason);
  void refuse_waiting();
  void drain();
  [[nodiscard]] Bytes free() const;
  [[nodiscard]] Bytes free_in_shares() const;
  [[nodiscard]] Bytes waiting() const;
  [[nodiscard]] std::size_t stalled() const;
  [[nodiscard]] std::vector<PathState> paths() const;
  [[nodiscard]] std::vector<Outage> outages() const;

 private:
  void require(const Request& request) const SPILLWAY_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t available() const SPILLWAY_REQUIRES(mutex_);
  [[nodiscard]] bool joins_other(std::uint32_t id) SPILLWAY_REQUIRES(mutex_);
  void leave(Group& group, Active& active) SPILLWAY_REQUIRES(mutex_);
  void serve_waiting(DeferredCallbacks& deferred, Bytes lacking = 0) SPILLWAY_REQUIRES(mutex_);
  void serve_other(const UnplacedWrite& first, DeferredCallbacks& deferred) SPILLWAY_REQUIRES(mutex_);
  void place(const UnplacedWrite& pieces, DeferredCallbacks& deferred) SPILLWAY_REQUIRES(mutex_);
  void launch(std::uint32_t id, std::uint32_t first, std::uint32_t count, DeferredCallbacks& deferred)
      SPILLWAY_REQUIRES(mutex_);
  void launch(const Run& run, DeferredCallbacks& deferred) SPILLWAY_REQUIRES(mutex_);
  static void ended(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept;
  void settle(std::uint32_t run_id, const std::exception_ptr& error, DeferredCallbacks& deferred)
      SPILLWAY_REQUIRES(mutex_);
  void retire(const Outage& outage, DeferredCallbacks& deferred) SPILLWAY_REQUIRES(mutex_);
  void wait_for_places(const Run& run, DeferredCallbacks& deferred) SPILLWAY_REQUIRES(mutex_);
  void drop_pending(std::uint32_t id, DeferredCallbacks& deferred) SPILLWAY_REQUIRES(mutex_);
  void call_deferred(DeferredCallbacks& deferred) SPILLWAY_REQUIRES(mutex_);

  const PoolOptions options_;

  mutable Mutex mutex_;
  Condition idle_;
  Members members_ SPILLWAY_GUARDED_BY(mutex_);
  Slots<Active> actives_ SPILLWAY_GUARDED_BY(mutex_){kPoolReserve};
  Slots<Run> runs_ SPILLWAY_GUARDED_BY(mutex_){kPoolReserve};
  std::priority_queue<UnplacedWrite> waiting_ SPILLWAY_GUARDED_BY(mutex_);
  std::uint64_t waiting_pieces_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  std::uint64_t reserved_ SPILLWAY_GUARDED_BY(mutex_) = 0;  ///< places that are reserved for writes that are to come
  std::uint64_t arrivals_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  /// Requests whose Done has not returned, and threads that call listeners.
  std::uint64_t outstanding_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  bool closing_ SPILLWAY_GUARDED_BY(mutex_) = false;
  std::exception_ptr reason_ SPILLWAY_GUARDED_BY(mutex_);  ///< why it was closed, where a reason was given
};

Pool::Impl::Impl(std::vector<PoolPath> paths, PoolOptions options)
    : options_(std::move(options)), members_(std::move(paths), options_.needed) {
  std::vector<UnplacedWrite> memory;
  memory.reserve(kPoolReserve);
  waiting_ = std::priority_queue<UnplacedWrite>({}, std::move(memory));
}

Pool::Impl::~Impl() {
  close(nullptr);
  drain();
}

void Pool::Impl::close(std::exception_ptr reason) {
  MutexLock lock(mutex_);
  DeferredCallbacks deferred;
  if (!closing_) reason_ = std::move(reason);
  closing_ = true;
  serve_waiting(deferred);
  call_deferred(deferred);
}

void Pool::Impl::refuse_waiting() {
  MutexLock lock(mutex_);
  DeferredCallbacks deferred;
  serve_waiting(deferred, (std::max(waiting_pieces_, members_.free() + 1) - members_.free()) * kPoolPiece);
  call_deferred(deferred);
}

void Pool::Impl::start(const Request& request) {
  require_well_formed(request);
  MutexLock lock(mutex_);
  require(request);
  DeferredCallbacks deferred;
  const auto id = actives_.add({request, ++arrivals_, 1, nullptr, false, Pair::kNone});
  const std::uint32_t pieces = actives_[id].pieces();
  ++outstanding_;
  if (request.direction == Direction::read) {
    launch(id, 0, pieces, deferred);
    drop_pending(id, deferred);
  } else {
    std::ranges::fill(request.places, kNowhere);
    waiting_pieces_ += pieces;
    if (request.group != nullptr) leave(*request.group, actives_[id]);
    if (!joins_other(id)) {
      const auto more = request.pair != nullptr && request.pair->half ? request.more : 0;
      waiting_.push({request.deadline, arrivals_, id, 0, pieces, more, actives_[id].reserved});
      const std::size_t queue = waiting_.size();
      serve_waiting(deferred);
      if (waiting_.size() == queue) deferred.add_scarcity();
    }
  }
  call_deferred(deferred);
}

/// Whether the other write of its pair waits, so that both are placed together.
bool Pool::Impl::joins_other(std::uint32_t id) {
  Active& active = actives_[id];
  Pair* const pair = active.request.pair;
  if (pair == nullptr) return false;
  pair->half = !pair->half;
  if (pair->half) {  // the first of them
    pair->waits = id;
    return false;
  }
  if (pair->waits != Pair::kNone) {
    actives_[pair->waits].other = id;
    return true;
  }
  active.reserved = pair->reserved > 0;
  reserved_ -= pair->reserved;
  pair->reserved = 0;
  return false;
}

/// A write of the group has come, and may have the places that were kept for it.
void Pool::Impl::leave(Group& group, Active& active) {
  const auto places = std::min<std::uint64_t>(group.left, active.pieces());
  group.left -= places;
  if (!group.reserved) return;
  reserved_ -= places;
  active.reserved = true;
}

void Pool::Impl::expect(Group& group, std::uint64_t places) {
  MutexLock lock(mutex_);
  if (group.reserved) reserved_ -= group.left;
  group = {places, false};
  DeferredCallbacks deferred;
  serve_waiting(deferred);
  call_deferred(deferred);
}

void Pool::Impl::reserve(Group& group) {
  const MutexLock lock(mutex_);
  if (!std::exchange(group.reserved, true)) reserved_ += group.left;
}

void Pool::Impl::require(const Request& request) const {
  if (request.direction == Direction::write) {
    if (members_.can_hold(request.places.size() + request.more)) return;
    std::rethrow_exception(shortage(request, members_.offer()));
  }
  for (const Place place : request.places) {
    if (!members_.exists(place)) refuse(request, "it is to be read from a place that does not exist");
    if (!members_.in_use(place)) refuse(request, "it is to be read from a place where nothing is");
  }
}

/// Writes are served in order of urgency. One that does not fit makes the others wait; otherwise large ones would wait
/// for ever. `lacking` > 0: those that wait are all refused, for so many bytes.
void Pool::Impl::serve_waiting(DeferredCallbacks& deferred, Bytes lacking) {
  while (!waiting_.empty()) {
    const UnplacedWrite pieces = waiting_.top();
    Active& active = actives_[pieces.request];
    const std::uint64_t wanted = pieces.count + pieces.more;
    const bool hopeless = closing_ || lacking > 0 || !members_.can_hold(wanted);
    if (!active.error && !hopeless && wanted > available()) return;
    waiting_.pop();
    waiting_pieces_ -= pieces.count;
    if (!active.error && closing_) active.error = reason_ ? reason_ : closed(active.request);
    if (!active.error && hopeless) active.error = shortage(active.request, members_.offer(lacking));
    if (!active.error) place(pieces, deferred);
    if (pieces.more > 0) serve_other(pieces, deferred);
    drop_pending(pieces.request, deferred);
  }
}

/// The first write of a pair has its places, or never will: the other one follows now, or when it comes.
void Pool::Impl::serve_other(const UnplacedWrite& first, DeferredCallbacks& deferred) {
  const Active& active = actives_[first.request];
  Pair& pair = *active.request.pair;
  const std::exception_ptr error = active.error;
  const std::uint32_t id = active.other;
  pair.waits = Pair::kNone;
  if (id == Pair::kNone) {
    if (!error) reserved_ += pair.reserved = first.more;
    return;
  }
  Active& other = actives_[id];
  waiting_pieces_ -= other.pieces();
  if (error) {
    other.error = error;
  } else {
    place({other.request.deadline, other.arrival, id, 0, other.pieces(), 0, true}, deferred);
  }
  drop_pending(id, deferred);
}

void Pool::Impl::place(const UnplacedWrite& pieces, DeferredCallbacks& deferred) {
  const Active& active = actives_[pieces.request];
  members_.stripe(active.request.places.subspan(pieces.first, pieces.count), active.bytes(pieces.first, pieces.count));
  launch(pieces.request, pieces.first, pieces.count, deferred);
}

void Pool::Impl::launch(std::uint32_t id, std::uint32_t first, std::uint32_t count, DeferredCallbacks& deferred) {
  const std::span<Place> places = actives_[id].request.places;
  const std::uint32_t end = first + count;
  while (first < end) {
    const Place start = places[first];
    std::uint32_t length = 1;
    while (first + length < end && length < kLongestRun &&
           places[first + length] == Place{start.path, start.piece + length}) {
      ++length;
    }
    launch(Run{id, start.path, first, length, actives_[id].bytes(first, length)}, deferred);
    first += length;
  }
}

void Pool::Impl::launch(const Run& run, DeferredCallbacks& deferred) {
  Active& active = actives_[run.request];
  const Request& request = active.request;
  ++active.pending;
  if (request.direction == Direction::read) members_.begin_read(run.path, run.bytes);
  const auto id = runs_.add(run);
  Transfer transfer;
  transfer.direction = request.direction;
  transfer.memory = request.memory + run.first * kPoolPiece;
  transfer.bytes = run.bytes;
  transfer.offset = request.places[run.first].piece * kPoolPiece;
  transfer.deadline = request.deadline;
  transfer.done = &Impl::ended;
  transfer.context = this;
  transfer.token = id;
  transfer.what = request.what;
  try {
    members_.path(run.path).start(transfer);
  } catch (...) {
    settle(id, std::current_exception(), deferred);
  }
}

void Pool::Impl::ended(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept {
  auto& self = *static_cast<Impl*>(context);
  MutexLock lock(self.mutex_);
  DeferredCallbacks deferred;
  self.settle(static_cast<std::uint32_t>(token), error, deferred);
  self.serve_waiting(deferred);
  self.call_deferred(deferred);
}

void Pool::Impl::settle(std::uint32_t run_id, const std::exception_ptr& error, DeferredCallbacks& deferred) {
  const Run run = runs_.take(run_id);
  Active& active = actives_[run.request];
  members_.end(run.path, active.request.direction, run.bytes);
  if (error && active.request.direction == Direction::write && is_outage(error)) {
    if (members_.writable(run.path)) retire(outage_of(error, run.path, members_.name(run.path), run.bytes), deferred);
    return wait_for_places(run, deferred);
  }
  if (error && !active.error) active.error = error;
  if (active.request.last_path != nullptr) *active.request.last_path = run.path;
  drop_pending(run.request, deferred);
}

void Pool::Impl::retire(const Outage& outage, DeferredCallbacks& deferred) {
  members_.retire(outage);
  deferred.add_outage(outage);
}

/// The run has not ended: its pieces go elsewhere, and keep their position in the order.
void Pool::Impl::wait_for_places(const Run& run, DeferredCallbacks& deferred) {
  const Active& active = actives_[run.request];
  std::ranges::fill(active.request.places.subspan(run.first, run.count), kNowhere);
  waiting_.push({active.request.deadline, active.arrival, run.request, run.first, run.count, 0, active.reserved});
  waiting_pieces_ += run.count;
  if (run.count > available()) deferred.add_scarcity();
}

/// One of the things that the request waits for has ended; the last one ends the request.
void Pool::Impl::drop_pending(std::uint32_t id, DeferredCallbacks& deferred) {
  if (--actives_[id].pending > 0) return;
  const Active active = actives_.take(id);
  if (active.error && active.request.direction == Direction::write) {
    for (const Place place : active.request.places) {
      if (place != kNowhere) members_.put(place);
    }
  }
  deferred.add_completion(active.request, active.error);
}

void Pool::Impl::release(std::span<const Place> places) {
  MutexLock lock(mutex_);
  for (const Place place : places) {
    if (!members_.exists(place) || !members_.in_use(place)) refuse(place, "released", "is free or does not exist");
  }
  for (const Place place : places) members_.put(place);
  DeferredCallbacks deferred;
  serve_waiting(deferred);
  call_deferred(deferred);
}

void Pool::Impl::claim(Place place) {
  const MutexLock lock(mutex_);
  if (!members_.exists(place) || members_.in_use(place)) refuse(place, "claimed", "is in use or does not exist");
  members_.claim(place);
}

void Pool::Impl::retire(std::uint32_t path, int errno_value, std::string_view reason) {
  MutexLock lock(mutex_);
  if (!members_.writable(path)) return;
  const std::string& name = members_.name(path);
  DeferredCallbacks deferred;
  retire(
      {path, name, errno_value, 0, text("path:", name, " gets no more writes, what it holds is still read: ", reason)},
      deferred);
  serve_waiting(deferred);
  call_deferred(deferred);
}

void Pool::Impl::drain() {
  MutexLock lock(mutex_);
  while (outstanding_ != 0) idle_.wait(lock);
}

Bytes Pool::Impl::free() const {
  const MutexLock lock(mutex_);
  return available() * kPoolPiece;
}

Bytes Pool::Impl::free_in_shares() const {
  const MutexLock lock(mutex_);
  return std::min(available(), members_.free_in_shares()) * kPoolPiece;
}

/// Free places that are not reserved; after an outage fewer may be free than are reserved.
std::uint64_t Pool::Impl::available() const {
  return members_.free() - std::min(members_.free(), reserved_);
}

Bytes Pool::Impl::waiting() const {
  const MutexLock lock(mutex_);
  return waiting_pieces_ * kPoolPiece;
}

/// A transfer under way is a run, and a listener that is being called is outstanding beside the requests.
std::size_t Pool::Impl::stalled() const {
  const MutexLock lock(mutex_);
  return runs_.size() == 0 && outstanding_ == actives_.size() ? actives_.size() : 0;
}

std::vector<PathState> Pool::Impl::paths() const {
  const MutexLock lock(mutex_);
  return members_.states();
}

std::vector<Outage> Pool::Impl::outages() const {
  const MutexLock lock(mutex_);
  return members_.outages();
}

/// The thread that calls them counts as outstanding, so that the pool lives until it is done.
void Pool::Impl::call_deferred(DeferredCallbacks& deferred) {
  if (deferred.empty()) return;
  ++outstanding_;
  mutex_.unlock();
  deferred.call(options_);
  mutex_.lock();
  outstanding_ -= 1 + deferred.completions();
  if (outstanding_ == 0) idle_.notify_all();
}

Pool::Pool(std::vector<PoolPath> paths, PoolOptions options)
    : impl_(std::make_unique<Impl>(std::move(paths), std::move(options))) {}
Pool::~Pool() = default;

void Pool::start(const Request& request) {
  impl_->start(request);
}
void Pool::run(Request request) {
  Waiter waiter;
  request.done = Waiter::done;
  request.context = &waiter;
  start(request);
  waiter.wait();
}
void Pool::expect(Group& group, std::uint64_t places) {
  impl_->expect(group, places);
}
void Pool::reserve(Group& group) {
  impl_->reserve(group);
}
void Pool::release(std::span<const Place> places) {
  impl_->release(places);
}
void Pool::claim(Place place) {
  impl_->claim(place);
}
void Pool::retire(std::uint32_t path, int errno_value, std::string_view reason) {
  impl_->retire(path, errno_value, reason);
}
void Pool::close(std::exception_ptr reason) {
  impl_->close(std::move(reason));
}
void Pool::refuse_waiting() {
  impl_->refuse_waiting();
}
void Pool::drain() {
  impl_->drain();
}
Bytes Pool::free() const {
  return impl_->free();
}
Bytes Pool::free_in_shares() const {
  return impl_->free_in_shares();
}
Bytes Pool::waiting() const {
  return impl_->waiting();
}
std::size_t Pool::stalled() const {
  return impl_->stalled();
}
std::vector<PathState> Pool::paths() const {
  return impl_->paths();
}
std::vector<Outage> Pool::outages() const {
  return impl_->outages();
}

}  // namespace spillway::storage
