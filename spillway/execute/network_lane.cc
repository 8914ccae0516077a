#include "spillway/execute/network_lane.h"

#include <algorithm>
#include <utility>

namespace spillway::execute {

NetworkLane::NetworkLane(const plan::Schedule& schedule, network::Port& port, NetworkWork& work, Ended ended)
    : schedule_(schedule),
      port_(port),
      work_(work),
      ended_(std::move(ended)),
      place_(schedule.tasks.size(), 0),
      states_(schedule.network.size(), State::skipped) {
  for (std::size_t at = 0; at < schedule.network.size(); ++at) place_[schedule.network[at]] = at;
  adder_ = std::thread([this] { add_up(); });
}

NetworkLane::~NetworkLane() {
  stop();
  {
    const MutexLock lock(mutex_);
    over_ = true;
    came_.notify_one();
  }
  adder_.join();
}

void NetworkLane::stop() {
  MutexLock lock(mutex_);
  halted_ = true;
  while (under_way_ > 0) idle_.wait(lock);
}

void NetworkLane::begin(std::uint64_t instance) {
  const MutexLock lock(mutex_);
  instance_ = instance;
  std::ranges::fill(states_, State::waits);
  next_ = 0;
  left_ = states_.size();
  since_ = clock_.now();
}

void NetworkLane::ready(const Start& start) {
  const MutexLock lock(mutex_);
  if (start.instance == instance_) states_[place_[start.task]] = State::ready;
}

void NetworkLane::skip(const Start& start) {
  const MutexLock lock(mutex_);
  if (start.instance != instance_) return;  // one that has no pass left may skip late
  states_[place_[start.task]] = State::skipped;
  --left_;
}

bool NetworkLane::take(Start& start) {
  const MutexLock lock(mutex_);
  while (next_ < states_.size() && states_[next_] == State::skipped) ++next_;
  if (halted_ || next_ == states_.size() || states_[next_] != State::ready) return false;
  start = {instance_, schedule_.network[next_++]};
  since_ = clock_.now();
  ++under_way_;
  return true;
}

void NetworkLane::start() {
  std::vector<std::pair<Start, std::exception_ptr>> at_once;  // that have ended without a message
  {
    const MutexLock order(order_);
    for (Start start; take(start);) {
      try {
        auto messages = work_.messages(schedule_.tasks[start.task]);
        if (messages.empty()) {
          at_once.emplace_back(start, nullptr);
        } else {
          port_.start(std::move(messages), [this, start](const std::exception_ptr& error) { arrived(start, error); });
        }
      } catch (...) {
        at_once.emplace_back(start, std::current_exception());
      }
    }
  }
  for (const auto& [start, error] : at_once) arrived(start, error);
}

void NetworkLane::arrived(const Start& start, const std::exception_ptr& error) {
  if (error || !work_.adds(schedule_.tasks[start.task])) return end(start, error);
  const MutexLock lock(mutex_);
  sums_.push_back(start);
  came_.notify_one();
}

void NetworkLane::add_up() {
  while (true) {
    Start start;
    {
      MutexLock lock(mutex_);
      while (sums_.empty() && !over_) came_.wait(lock);
      if (sums_.empty()) return;
      start = sums_.front();
      sums_.pop_front();
    }
    end(start, nullptr);
  }
}

void NetworkLane::end(const Start& start, std::exception_ptr error) {
  if (!error) {
    const MutexLock one(arrivals_);
    try {
      work_.arrived(schedule_.tasks[start.task]);
    } catch (...) {
      error = std::current_exception();
    }
  }
  {
    const MutexLock lock(mutex_);
    if (!error && start.instance == instance_) --left_;
  }
  ended_(start, error);
  const MutexLock lock(mutex_);
  since_ = clock_.now();
  if (--under_way_ == 0) idle_.notify_all();
}

void NetworkLane::halt() {
  const MutexLock lock(mutex_);
  halted_ = true;
}

bool NetworkLane::ended() const {
  const MutexLock lock(mutex_);
  return left_ == 0;
}

std::optional<Turn> NetworkLane::late() const {
  const MutexLock lock(mutex_);
  auto next = next_;
  while (next < states_.size() && states_[next] == State::skipped) ++next;
  if (halted_ || under_way_ > 0 || next == states_.size() || states_[next] != State::waits) return std::nullopt;
  return Turn{{instance_, schedule_.network[next]}, clock_.now() - since_};
}

}  // namespace spillway::execute
