#include "spillway/journal/journal.h"

#include <new>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::journal {
namespace {

const std::thread::id kNobody;

}  // namespace

Journal::Journal(JournalSpec spec, Media& media, JournalListener& listener, VotePort* votes)
    : media_(media), listener_(listener), votes_(votes), state_(std::move(spec)), layout_(state_.layout()) {
  if (state_.votes() != (votes != nullptr)) {
    throw Error(ErrorCode::internal, votes == nullptr ? "a shard has nobody to ask whether the others have a step"
                                                      : "the only shard of a run has nobody to vote with");
  }
}

Journal::~Journal() {
  stop();
  if (votes_ != nullptr) votes_->cancel();
  MutexLock lock(mutex_);
  while (outstanding_ != 0 || carrier_ != kNobody) idle_.wait(lock);
}

template <class... Parameters, class... Arguments>
void Journal::on(void (JournalState::*event)(Parameters...), Arguments&&... arguments) {
  const MutexLock lock(mutex_);
  if (stopped_) return;
  try {
    (state_.*event)(std::forward<Arguments>(arguments)...);
  } catch (const std::bad_alloc&) {  // half of the event may have happened
    break_off(std::current_exception());
    throw;
  }
  carry_out();
}

/// What the journal knows is not to be trusted any more: it does nothing from here on, and the listener is told why.
void Journal::break_off(const std::exception_ptr& error) noexcept {
  if (std::exchange(stopped_, true)) return;
  teller_ = std::this_thread::get_id();
  mutex_.unlock();
  listener_.failed(error);
  mutex_.lock();
  teller_ = kNobody;
  idle_.notify_all();
}

/// It is called on a path's thread, which has nobody to throw to.
template <class... Parameters, class... Arguments>
void Journal::ended(void (JournalState::*event)(Parameters...), const Arguments&... arguments) noexcept {
  const MutexLock lock(mutex_);
  if (!stopped_) {
    try {
      (state_.*event)(arguments...);
      carry_out();
    } catch (...) {
      break_off(std::current_exception());
    }
  }
  --outstanding_;
  idle_.notify_all();
}

void Journal::carry_out() {
  if (carrier_ != kNobody) return;  // that thread takes these as well, so that they stay in order
  carrier_ = std::this_thread::get_id();
  while (!state_.actions.empty() && !stopped_) {
    const Action action = std::move(state_.actions.front());
    state_.actions.pop_front();
    const bool asks =
        action.kind == Action::Kind::write || action.kind == Action::Kind::sync || action.kind == Action::Kind::vote;
    if (asks) ++outstanding_;
    mutex_.unlock();
    std::exception_ptr failure;
    try {
      perform(action);
    } catch (...) {
      failure = std::current_exception();
    }
    mutex_.lock();
    if (failure) {
      if (asks) --outstanding_;
      break_off(failure);
      break;
    }
    if (action.kind == Action::Kind::released) state_.recycle(action.version);
  }
  carrier_ = kNobody;
  idle_.notify_all();
}

void Journal::perform(const Action& action) {
  switch (action.kind) {
    case Action::Kind::write:
      return start_write(action);
    case Action::Kind::sync:
      return start_sync(action.path);
    case Action::Kind::vote:
      return start_vote(action.vote);
    case Action::Kind::opened:
      return listener_.opened();
    case Action::Kind::durable:
      return listener_.durable(action.step);
    case Action::Kind::released:
      if (!action.version->pieces.empty()) listener_.released(action.version->pieces);
      return;
    case Action::Kind::checkpoint:
      return action.done(action.manifest ? *action.manifest : Manifest{}, action.error);
    case Action::Kind::path_failed:
      return listener_.path_failed(action.path, action.error);
    case Action::Kind::failed:
      return listener_.failed(action.error);
  }
}

void Journal::start_write(const Action& action) {
  const auto done = [this, task = action.task, copy = action.copy, path = action.path](std::exception_ptr error) {
    ended(&JournalState::write_ended, task, copy, path, error);
  };
  media_.write(action.path, action.offset, action.bytes, done);
}

void Journal::start_sync(std::uint32_t path) {
  const auto done = [this, path](std::exception_ptr error) { ended(&JournalState::sync_ended, path, error); };
  media_.sync(path, done);
}

void Journal::start_vote(std::int64_t step) {
  votes_->vote(step, [this](std::int64_t minimum, const std::exception_ptr& error) {
    ended(&JournalState::voted, minimum, error);
  });
}

void Journal::open_fresh(const Recovered& before) {
  on(&JournalState::open_fresh, before);
}
void Journal::open_resumed(const Recovered& recovered) {
  on(&JournalState::open_resumed, recovered);
}
void Journal::open_at(const Manifest& manifest, const Recovered& before) {
  on(&JournalState::open_at, manifest, before);
}
void Journal::snapshot_written(std::uint32_t chunk, std::uint64_t version, std::span<const Piece> pieces) {
  on(&JournalState::snapshot_written, chunk, version, pieces);
}
void Journal::gradient_written(std::uint32_t gradient, std::uint64_t version, std::span<const Piece> pieces) {
  on(&JournalState::gradient_written, gradient, version, pieces);
}
void Journal::commit(const CommitRequest& request) {
  on(&JournalState::commit, request);
}
void Journal::hurry() {
  on(&JournalState::hurry);
}
void Journal::checkpoint(CheckpointDone done) {
  on(&JournalState::checkpoint, std::move(done));
}
void Journal::pin(const Manifest& manifest) {
  on(&JournalState::pin, manifest);
}
void Journal::unpin(const Manifest& manifest) {
  on(&JournalState::unpin, manifest);
}
void Journal::path_failed(std::uint32_t path, std::exception_ptr error) {
  on(&JournalState::path_failed, path, error);
}

void Journal::stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  const auto another = [self = std::this_thread::get_id()](std::thread::id it) { return it != kNobody && it != self; };
  while (another(carrier_) || another(teller_)) idle_.wait(lock);
}

bool Journal::quiet() const {
  const MutexLock lock(mutex_);
  return outstanding_ == 0 && carrier_ == kNobody;
}

std::optional<std::uint64_t> Journal::durable() const {
  const MutexLock lock(mutex_);
  return state_.durable();
}

}  // namespace spillway::journal
