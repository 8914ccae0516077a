#include "spillway/storage/pool.h"

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <queue>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/storage/members.h"
#include "spillway/storage/news.h"
#include "spillway/storage/shortage.h"
#include "spillway/storage/slots.h"
#include "spillway/storage/waiter.h"

namespace spillway::storage {
namespace {

constexpr Bytes kPoolPiece = kExtentAlignment;
/// Requests and runs at once for which nothing is allocated.
constexpr std::size_t kPoolReserve = 4096;
/// Pieces of a transfer, at most: the fewer, the better a path's queue is known.
constexpr std::uint32_t kLongestRun = 8;
constexpr Place kNowhere = {std::numeric_limits<std::uint32_t>::max(), std::numeric_limits<std::uint32_t>::max()};

/// A request between its start and its end.
struct Active {
  Pool::Request request;
  std::uint64_t arrival = 0;
  std::uint32_t pending = 0;                ///< runs under way, stretches waiting, and one while we hand it out
  std::exception_ptr error;                 ///< the first
  bool kept = false;                        ///< its places were kept
  std::uint32_t other = Pool::Pair::kNone;  ///< of a pair: the request that came while this one waited

  [[nodiscard]] std::uint32_t pieces() const { return static_cast<std::uint32_t>(request.places.size()); }
  /// Of `count` pieces from `first` on; only the last piece of a request may be short.
  [[nodiscard]] Bytes bytes(std::uint32_t first, std::uint32_t count) const {
    return std::min(count * kPoolPiece, request.bytes - first * kPoolPiece);
  }
};

/// Pieces of a request that lie together, as one transfer.
struct Run {
  std::uint32_t request = 0;
  std::uint32_t path = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  Bytes bytes = 0;
};

/// Pieces of a write that have no place yet.
struct Homeless {
  std::uint64_t deadline = 0;
  std::uint64_t arrival = 0;
  std::uint32_t request = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t more = 0;                                 ///< places to be kept beside
  bool kept = false;                                      ///< theirs were
  bool operator<(const Homeless& other) const noexcept {  // std::priority_queue serves the largest
    if (kept != other.kept) return other.kept;
    return deadline != other.deadline ? deadline > other.deadline : arrival > other.arrival;
  }
};

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
  void release(std::span<const Place> places);
  void claim(Place place);
  void take_out(std::uint32_t path, int errno_value, std::string_view reason);
  void close(std::exception_ptr reason);
  void drain();
  [[nodiscard]] Bytes free() const;
  [[nodiscard]] Bytes waiting() const;
  [[nodiscard]] std::vector<PathState> paths() const;
  [[nodiscard]] std::vector<Outage> outages() const;

 private:
  using Lock = std::unique_lock<std::mutex>;

  void require(const Request& request) const;
  [[nodiscard]] std::uint64_t available() const;
  [[nodiscard]] bool joins_other(std::uint32_t id);
  void serve_waiting(News& news);
  void serve_other(const Homeless& first, News& news);
  void place(const Homeless& pieces, News& news);
  void launch(std::uint32_t id, std::uint32_t first, std::uint32_t count, News& news);
  void launch(const Run& run, News& news);
  static void ended(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept;
  void settle(std::uint32_t run_id, const std::exception_ptr& error, News& news);
  void take_out(const Outage& outage, News& news);
  void wait_for_places(const Run& run, News& news);
  void let_go(std::uint32_t id, News& news);
  void tell(Lock& lock, News& news);

  const PoolOptions options_;

  mutable std::mutex mutex_;  ///< guards everything below
  std::condition_variable idle_;
  Members members_;
  Slots<Active> actives_{kPoolReserve};
  Slots<Run> runs_{kPoolReserve};
  std::priority_queue<Homeless> waiting_;
  std::uint64_t waiting_pieces_ = 0;
  std::uint64_t kept_ = 0;  ///< places, for writes that are to come
  std::uint64_t arrivals_ = 0;
  std::uint64_t outstanding_ = 0;  ///< requests whose Done has not returned, and threads that tell
  bool closing_ = false;
  std::exception_ptr reason_;  ///< why, where there is one
};

Pool::Impl::Impl(std::vector<PoolPath> paths, PoolOptions options)
    : options_(std::move(options)), members_(std::move(paths), options_.needed) {
  std::vector<Homeless> reserved;
  reserved.reserve(kPoolReserve);
  waiting_ = std::priority_queue<Homeless>({}, std::move(reserved));
}

Pool::Impl::~Impl() {
  close(nullptr);
  drain();
}

void Pool::Impl::close(std::exception_ptr reason) {
  Lock lock(mutex_);
  News news;
  if (!closing_) reason_ = std::move(reason);
  closing_ = true;
  serve_waiting(news);
  tell(lock, news);
}

void Pool::Impl::start(const Request& request) {
  require_well_formed(request);
  Lock lock(mutex_);
  require(request);
  News news;
  const auto id = actives_.add({request, ++arrivals_, 1, nullptr, false, Pair::kNone});
  const std::uint32_t pieces = actives_[id].pieces();
  ++outstanding_;
  if (request.direction == Direction::read) {
    launch(id, 0, pieces, news);
    let_go(id, news);
  } else {
    std::ranges::fill(request.places, kNowhere);
    waiting_pieces_ += pieces;
    if (!joins_other(id)) {
      const auto more = request.pair != nullptr && request.pair->half ? request.more : 0;
      waiting_.push({request.deadline, arrivals_, id, 0, pieces, more, actives_[id].kept});
      const std::size_t queue = waiting_.size();
      serve_waiting(news);
      if (waiting_.size() == queue) news.set_scarce();
    }
  }
  tell(lock, news);
}

/// Whether it has come while the other of its pair waits, and is placed together with it.
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
  active.kept = pair->kept > 0;
  kept_ -= pair->kept;
  pair->kept = 0;
  return false;
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

/// Most urgent first; one that does not fit makes the others wait, or large ones would wait forever.
void Pool::Impl::serve_waiting(News& news) {
  while (!waiting_.empty()) {
    const Homeless pieces = waiting_.top();
    Active& active = actives_[pieces.request];
    const std::uint64_t wanted = pieces.count + pieces.more;
    const bool hopeless = closing_ || !members_.can_hold(wanted);
    if (!active.error && !hopeless && wanted > available()) return;
    waiting_.pop();
    waiting_pieces_ -= pieces.count;
    if (!active.error && closing_) active.error = reason_ ? reason_ : closed(active.request);
    if (!active.error && hopeless) active.error = shortage(active.request, members_.offer());
    if (!active.error) place(pieces, news);
    if (pieces.more > 0) serve_other(pieces, news);
    let_go(pieces.request, news);
  }
}

/// Of a pair whose first has its places, or none and never will: the other one, now or when it comes.
void Pool::Impl::serve_other(const Homeless& first, News& news) {
  const Active& active = actives_[first.request];
  Pair& pair = *active.request.pair;
  const std::exception_ptr error = active.error;
  const std::uint32_t id = active.other;
  pair.waits = Pair::kNone;
  if (id == Pair::kNone) {
    if (!error) kept_ += pair.kept = first.more;
    return;
  }
  Active& other = actives_[id];
  waiting_pieces_ -= other.pieces();
  if (error) {
    other.error = error;
  } else {
    place({other.request.deadline, other.arrival, id, 0, other.pieces(), 0, true}, news);
  }
  let_go(id, news);
}

void Pool::Impl::place(const Homeless& pieces, News& news) {
  const Active& active = actives_[pieces.request];
  members_.deal(active.request.places.subspan(pieces.first, pieces.count), active.bytes(pieces.first, pieces.count));
  launch(pieces.request, pieces.first, pieces.count, news);
}

void Pool::Impl::launch(std::uint32_t id, std::uint32_t first, std::uint32_t count, News& news) {
  const std::span<Place> places = actives_[id].request.places;
  const std::uint32_t end = first + count;
  while (first < end) {
    const Place start = places[first];
    std::uint32_t length = 1;
    while (first + length < end && length < kLongestRun &&
           places[first + length] == Place{start.path, start.piece + length}) {
      ++length;
    }
    launch(Run{id, start.path, first, length, actives_[id].bytes(first, length)}, news);
    first += length;
  }
}

void Pool::Impl::launch(const Run& run, News& news) {
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
    settle(id, std::current_exception(), news);
  }
}

void Pool::Impl::ended(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept {
  auto& self = *static_cast<Impl*>(context);
  Lock lock(self.mutex_);
  News news;
  self.settle(static_cast<std::uint32_t>(token), error, news);
  self.serve_waiting(news);
  self.tell(lock, news);
}

void Pool::Impl::settle(std::uint32_t run_id, const std::exception_ptr& error, News& news) {
  const Run run = runs_.take(run_id);
  Active& active = actives_[run.request];
  members_.end(run.path, active.request.direction, run.bytes);
  if (error && active.request.direction == Direction::write && is_outage(error)) {
    if (members_.writable(run.path)) take_out(outage_of(error, run.path, members_.name(run.path), run.bytes), news);
    return wait_for_places(run, news);
  }
  if (error && !active.error) active.error = error;
  if (active.request.last_path != nullptr) *active.request.last_path = run.path;
  let_go(run.request, news);
}

void Pool::Impl::take_out(const Outage& outage, News& news) {
  members_.take_out(outage);
  news.add_outage(outage);
}

/// The run has not ended: its pieces go elsewhere. It keeps its place in the order.
void Pool::Impl::wait_for_places(const Run& run, News& news) {
  const Active& active = actives_[run.request];
  std::ranges::fill(active.request.places.subspan(run.first, run.count), kNowhere);
  waiting_.push({active.request.deadline, active.arrival, run.request, run.first, run.count, 0, active.kept});
  waiting_pieces_ += run.count;
  if (run.count > available()) news.set_scarce();
}

/// One thing less to wait for; the last one ends the request.
void Pool::Impl::let_go(std::uint32_t id, News& news) {
  if (--actives_[id].pending > 0) return;
  const Active active = actives_.take(id);
  if (active.error && active.request.direction == Direction::write) {
    for (const Place place : active.request.places) {
      if (place != kNowhere) members_.put(place);
    }
  }
  news.add_end(active.request, active.error);
}

void Pool::Impl::release(std::span<const Place> places) {
  Lock lock(mutex_);
  for (const Place place : places) {
    if (!members_.exists(place) || !members_.in_use(place)) refuse(place, "released", "is free or does not exist");
  }
  for (const Place place : places) members_.put(place);
  News news;
  serve_waiting(news);
  tell(lock, news);
}

void Pool::Impl::claim(Place place) {
  const Lock lock(mutex_);
  if (!members_.exists(place) || members_.in_use(place)) refuse(place, "claimed", "is in use or does not exist");
  members_.claim(place);
}

void Pool::Impl::take_out(std::uint32_t path, int errno_value, std::string_view reason) {
  Lock lock(mutex_);
  if (!members_.writable(path)) return;
  const std::string& name = members_.name(path);
  News news;
  take_out(
      {path, name, errno_value, 0, text("path:", name, " gets no more writes, what it holds is still read: ", reason)},
      news);
  serve_waiting(news);
  tell(lock, news);
}

void Pool::Impl::drain() {
  Lock lock(mutex_);
  idle_.wait(lock, [this] { return outstanding_ == 0; });
}

Bytes Pool::Impl::free() const {
  const Lock lock(mutex_);
  return available() * kPoolPiece;
}

/// Free places that are kept for nobody; after an outage fewer may be free than are kept.
std::uint64_t Pool::Impl::available() const {
  return members_.free() - std::min(members_.free(), kept_);
}

Bytes Pool::Impl::waiting() const {
  const Lock lock(mutex_);
  return waiting_pieces_ * kPoolPiece;
}

std::vector<PathState> Pool::Impl::paths() const {
  const Lock lock(mutex_);
  return members_.states();
}

std::vector<Outage> Pool::Impl::outages() const {
  const Lock lock(mutex_);
  return members_.outages();
}

/// Whoever tells counts as outstanding: the pool lives until it is done.
void Pool::Impl::tell(Lock& lock, News& news) {
  if (news.empty()) return;
  ++outstanding_;
  lock.unlock();
  news.tell(options_);
  lock.lock();
  outstanding_ -= 1 + news.ends();
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
void Pool::release(std::span<const Place> places) {
  impl_->release(places);
}
void Pool::claim(Place place) {
  impl_->claim(place);
}
void Pool::take_out(std::uint32_t path, int errno_value, std::string_view reason) {
  impl_->take_out(path, errno_value, reason);
}
void Pool::close(std::exception_ptr reason) {
  impl_->close(std::move(reason));
}
void Pool::drain() {
  impl_->drain();
}
Bytes Pool::free() const {
  return impl_->free();
}
Bytes Pool::waiting() const {
  return impl_->waiting();
}
std::vector<PathState> Pool::paths() const {
  return impl_->paths();
}
std::vector<Outage> Pool::outages() const {
  return impl_->outages();
}

}  // namespace spillway::storage
