#include "spillway/network/served.h"

#include <utility>

#include "spillway/base/error.h"

namespace spillway::network {
namespace {

std::exception_ptr failure(const std::string& words) {
  return std::make_exception_ptr(Error(ErrorCode::io, words));
}

}  // namespace

void Served::check(const std::vector<Message>& messages) const {
  for (const auto& it : messages) {
    if (it.peer < size_ && it.peer != rank_ && !it.bytes.empty()) continue;
    throw Error(ErrorCode::bad_input, text("a message of ", it.bytes.size(), " bytes between rank ", rank_,
                                           " and rank ", it.peer, " of a world of ", size_));
  }
}

void Served::start(std::vector<Message> messages, Done done) {
  check(messages);
  if (messages.empty()) return done(nullptr);
  {
    MutexLock lock(mutex_);
    if (!closed_) {
      waiting_.push_back({next_, std::move(messages)});
      done_.emplace(next_++, std::move(done));
      arrived_.notify_one();
      return;
    }
  }
  done(failure("the network port is closed"));
}

std::optional<Transfer> Served::next() {
  MutexLock lock(mutex_);
  while (waiting_.empty() && !closed_) arrived_.wait(lock);
  if (closed_) return std::nullopt;
  auto out = std::move(waiting_.front());
  waiting_.pop_front();
  return out;
}

void Served::end(std::uint64_t id, const std::string& error) {
  Done done;
  {
    MutexLock lock(mutex_);
    const auto it = done_.find(id);
    const bool taken = waiting_.empty() || id < waiting_.front().id;
    if (closed_ && it == done_.end()) return;
    if (it == done_.end() || !taken) {
      throw Error(ErrorCode::bad_input, text("transfer ", id, " was not taken, or has ended"));
    }
    done = std::move(it->second);
    done_.erase(it);
  }
  done(error.empty() ? nullptr : failure(error));
}

void Served::close() noexcept {
  std::map<std::uint64_t, Done> left;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    waiting_.clear();
    left.swap(done_);
    arrived_.notify_all();
  }
  for (auto& [id, done] : left) done(failure(text("the network port was closed before transfer ", id, " had ended")));
}

std::size_t Served::under_way() const {
  MutexLock lock(mutex_);
  return done_.size();
}

}  // namespace spillway::network
