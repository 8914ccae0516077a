// The executor's side of the lanes: tasks that it hands to them, and those of the network that come back.
#include <utility>

#include "spillway/execute/executor.h"

namespace spillway::execute {

void Executor::make_ready(Start start, std::vector<Start>& transfers, std::vector<Start>& skipped) {
  const auto& task = schedule_.tasks[start.task];
  auto& its_bank = bank(start.instance);
  const bool runs_here = runs(its_bank, task);
  if (brings_if_asked(task) && task.when.may_run(its_bank.facts)) {
    for (auto c = task.what.index; c < task.what.end(); ++c) work_.expect_gradient(c, runs_here);
  }
  if (!runs_here) {
    if (traits(task.lane).server == plan::Server::network) network_->skip(start);
    skipped.push_back(start);
    return;
  }
  its_bank.times[start.task].start = now();
  switch (traits(task.lane).server) {
    case plan::Server::paths:
    case plan::Server::link:
    case plan::Server::device:
      transfers.push_back(start);
      break;
    case plan::Server::cores:
      updates_->push(start);
      break;
    case plan::Server::network:
      network_->ready(start);  // launch() begins it
      break;
    case plan::Server::caller:
      pass_ready_[task.what.index] = 1;
      updates_->caller_waits(false);  // from now on, not when it wakes up: no update of idle priority begins beside it
      compute_wake_.notify_all();
      break;
  }
}

/// Counted here, and not where they get ready: what a failure keeps from getting here is waited for by nobody.
void Executor::launch(std::vector<Start>& transfers) {
  if (network_) network_->start();
  if (transfers.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    in_flight_ += transfers.size();
  }
  for (const auto& start : transfers) {
    try {
      launch_transfer(start, schedule_.tasks[start.task]);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      fail(std::current_exception());
      --in_flight_;
    }
  }
  transfers.clear();
}

void Executor::network_ended(const Start& start, const std::exception_ptr& error) noexcept {
  std::vector<Start> ready;
  std::unique_lock lock(mutex_);
  bank(start.instance).times[start.task].end = now();
  try {
    if (error) std::rethrow_exception(error);
    if (failure_) return;
    skipped_.clear();
    end_task(start, ready);
    compute_wake_.notify_all();
    lock.unlock();
    launch(ready);
  } catch (...) {
    if (!lock) lock.lock();
    fail(std::current_exception());
  }
}

void Executor::end_network() {
  if (!network_) return;
  std::unique_lock lock(mutex_);
  help_until(lock, compute_wake_, [&] { return network_->ended(); });
  throw_failure();
}

std::optional<Lateness> Executor::late() const {
  if (!network_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto turn = network_->late();
  if (!turn || instances_ == 0 || turn->start.instance != instances_ - 1) return std::nullopt;
  const auto& now = banks_[turn->start.instance % banks_.size()].ended;
  const auto& before = banks_[instances_ % banks_.size()].ended;
  const auto pass = pass_ < schedule_.passes.size() ? schedule_.passes[pass_].task : plan::kNone;
  return Lateness{turn->start.task, cause_of(schedule_, {now, before}, turn->start.task, pass), turn->seconds};
}

}  // namespace spillway::execute
