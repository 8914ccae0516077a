#include "spillway/journal/served_votes.h"

#include <utility>

#include "spillway/base/error.h"

namespace spillway::journal {
namespace {

std::exception_ptr vote_failure(const std::string& words) {
  return std::make_exception_ptr(Error(ErrorCode::io, words));
}

}  // namespace

void ServedVotes::vote(std::int64_t step, Done done) {
  {
    const MutexLock lock(mutex_);
    if (done_) throw Error(ErrorCode::internal, text("a vote for step ", step, " is begun while another is under way"));
    if (!closed_) {
      waiting_ = step;
      done_ = std::move(done);
      arrived_.notify_one();
      return;
    }
  }
  done(kNoStep, vote_failure("votes are closed"));
}

std::optional<std::int64_t> ServedVotes::next() {
  MutexLock lock(mutex_);
  while (!waiting_ && !closed_) arrived_.wait(lock);
  if (closed_) return std::nullopt;
  taken_ = std::exchange(waiting_, std::nullopt);
  return taken_;
}

void ServedVotes::end(std::int64_t step, std::int64_t minimum, const std::string& error) {
  Done done;
  {
    const MutexLock lock(mutex_);
    if (taken_ != step)
      throw Error(ErrorCode::bad_input, text("a vote for step ", step, " was not taken, or has ended"));
    taken_.reset();
    if (waiting_) return;  // of a vote before the one that waits now
    done = std::exchange(done_, nullptr);
  }
  if (done) done(minimum, error.empty() ? nullptr : vote_failure(error));
}

void ServedVotes::cancel() noexcept {
  fail("the vote was given up on this shard");
}

void ServedVotes::close() noexcept {
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    arrived_.notify_all();
  }
  fail("votes were closed before the other shards had answered");
}

void ServedVotes::fail(const char* why) noexcept {
  Done done;
  {
    const MutexLock lock(mutex_);
    waiting_.reset();
    done = std::exchange(done_, nullptr);
  }
  if (done) done(kNoStep, vote_failure(why));
}

}  // namespace spillway::journal
