#include "spillway/execute/dispatcher.h"

#include <utility>

#include "spillway/execute/store.h"

namespace spillway::execute {

Dispatcher::Dispatcher(const plan::Schedule& schedule, const Transfers::Ends& ends, UpdateWork& work, UpdateCores cores,
                       const OtherProcesses& others, const Clock& clock)
    : schedule_(schedule),
      clock_(clock),
      tracker_(schedule, work),
      transfers_(schedule, ends, tracker_, mutex_, static_cast<Transfers::Client&>(*this)) {
  if (others.port != nullptr) {
    network_ = std::make_unique<NetworkLane>(
        schedule, *others.port, *others.work,
        [this](const Start& start, const std::exception_ptr& error) { network_ended(start, error); });
  }
  const auto n = schedule.tasks.size();
  for (auto* list : {&released_.ready, &released_.skipped, &caller_transfers_}) list->reserve(n);
  updates_ = std::make_unique<UpdateLanes>(schedule, work, std::move(cores), clock, mutex_,
                                           static_cast<UpdateLanes::Client&>(*this));
  lane_transfers_.resize(updates_->count());
  for (auto& list : lane_transfers_) list.reserve(n);
}

/// Completions refer to this object: it waits for what the lanes still have.
Dispatcher::~Dispatcher() {
  if (network_) network_->stop();
  updates_->stop();
  transfers_.stop();
}

// ---- tasks that go to the lanes ----

/// `transfers`: the calling thread's own.
void Dispatcher::dispatch(const Change& change, std::vector<Start>& transfers, Lock& lock) {
  released_.clear();
  change(tracker_, released_);
  transfers.clear();
  hand_out(transfers);
  lock.unlock();
  if (network_) network_->start();
  transfers_.start(transfers);
  lock.lock();
}

/// Gives what was released to its lanes, but for transfers, which start without the lock.
void Dispatcher::hand_out(std::vector<Start>& transfers) {
  for (const auto& start : released_.skipped) {
    if (traits(schedule_.tasks[start.task].lane).server == plan::Server::network) network_->skip(start);
  }
  for (const auto& start : released_.ready) hand_out(start, transfers);
  if (released_.awaited) wake_.notify_all();
}

void Dispatcher::hand_out(const Start& start, std::vector<Start>& transfers) {
  tracker_.times(start).start = clock_.now();
  switch (traits(schedule_.tasks[start.task].lane).server) {
    case plan::Server::paths:
    case plan::Server::link:
    case plan::Server::device:
      transfers.push_back(start);
      break;
    case plan::Server::cores:
      updates_->push(start);
      break;
    case plan::Server::network:
      network_->ready(start);  // dispatch() begins it
      break;
    case plan::Server::caller:
      updates_->caller_waits(false);  // from now on, not when it wakes up: no update of idle priority begins beside it
      wake_.notify_all();
      break;
  }
}

void Dispatcher::begin(const Mode& mode, Lock& lock) {
  const auto instance = tracker_.count();
  if (auto* const copies = transfers_.copies()) copies->begin(instance);
  if (network_) network_->begin(instance);
  change([&](auto& tracker, auto& released) { tracker.begin(mode, released); }, lock);
}

void Dispatcher::ask(plan::Range chunks, Lock& lock) {
  std::vector<Start> transfers;
  dispatch([&](auto& tracker, auto& released) { tracker.ask(chunks, released); }, transfers, lock);
}

// ---- tasks that come back ----

void Dispatcher::end(const Start& start, const std::exception_ptr& error, std::vector<Start>& transfers,
                     Lock& lock) noexcept {
  try {
    if (error) return fail(error);
    if (failure_) return;
    dispatch([&](auto& tracker, auto& released) { tracker.end(start, released); }, transfers, lock);
  } catch (...) {
    if (!lock) lock.lock();
    fail(std::current_exception());
  }
}

void Dispatcher::update_begins(const Start& start, double now) {
  tracker_.times(start).start = now;
}

void Dispatcher::update_ended(const Start& start, double now, std::size_t lane, Lock& lock) {
  tracker_.times(start).end = now;
  end(start, nullptr, lane_transfers_[lane], lock);
}

/// Passes alone are released, and those are the caller's: there is nothing to start.
void Dispatcher::transfer_issued(const Start& start) {
  std::vector<Start> none;
  released_.clear();
  tracker_.issue(start, released_);
  hand_out(none);
}

void Dispatcher::transfer_ended(const Start& start, const std::exception_ptr& error, Lock& lock) noexcept {
  thread_local std::vector<Start> transfers;  // several paths end transfers at once; grows to its size and stays
  tracker_.times(start).end = clock_.now();
  end(start, error, transfers, lock);  // an error may come from within dispatch(): `transfers` is in use
}

void Dispatcher::network_ended(const Start& start, const std::exception_ptr& error) noexcept {
  std::vector<Start> transfers;
  Lock lock(mutex_);
  tracker_.times(start).end = clock_.now();
  end(start, error, transfers, lock);
  wake_.notify_all();  // of end_network()
}

// ---- waits ----

void Dispatcher::wait_until(const std::function<bool()>& is_done, Lock& lock) {
  updates_->caller_waits(true);
  for (int looks = 0; !failure_ && !is_done();) {
    const bool idle = !updates_->help(lock) && wake_.wait_for(lock, kStallCheck) == std::cv_status::timeout;
    looks = idle && !failure_ && !is_done() && is_stalled() ? looks + 1 : 0;
    if (looks < kStalledLooks) continue;
    lock.unlock();
    transfers_.refuse_waiting();  // transfer_ended() has the lock
    lock.lock();
  }
  updates_->caller_waits(false);
  throw_failure();
}

void Dispatcher::run_while_waiting(const std::function<void()>& body, Lock& lock) {
  updates_->caller_waits(true);
  lock.unlock();
  body();
  lock.lock();
  updates_->caller_waits(false);
}

void Dispatcher::end_network(Lock& lock) {
  if (network_) wait_until([this] { return network_->ended(); }, lock);
}

void Dispatcher::fail(std::exception_ptr error) {
  if (!failure_) transfers_.give_up(error);
  if (!failure_) failure_ = std::move(error);
  updates_->halt();
  if (network_) network_->halt();
  wake_.notify_all();
}

void Dispatcher::throw_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

/// The caller waits, no update can begin, and every transfer is a write that waits for a place: nobody is left who
/// would give one back, nor change that. (In a world of several, what arrives from others may.)
bool Dispatcher::is_stalled() const {
  return (!network_ || network_->ended()) && updates_->idle() && transfers_.are_stalled();
}

std::optional<Lateness> Dispatcher::late() const {
  if (!network_) return std::nullopt;
  const Lock lock(mutex_);
  const auto turn = network_->late();
  if (!turn || tracker_.count() == 0 || turn->start.instance != tracker_.newest()) return std::nullopt;
  const auto next = tracker_.pass();
  const auto pass = next < schedule_.passes.size() ? schedule_.passes[next].task : plan::kNone;
  return Lateness{turn->start.task, cause_of(schedule_, tracker_.ended(), turn->start.task, pass), turn->seconds};
}

}  // namespace spillway::execute
