#include "spillway/device/staging_ring.h"

#include <optional>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/base/thread.h"
#include "spillway/sys/thread.h"

namespace spillway::device {

StagingRing::StagingRing(Device& device, Stream stream)
    : device_(device), stream_(stream), staging_(device, stream, kSlots) {
  thread_ = start_thread([this] { serve(); });
}

StagingRing::~StagingRing() {
  end();
}

void StagingRing::end() noexcept {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

StagingRing::Ticket StagingRing::add(const Operation& operation) {
  Ticket out = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) queue_.push_back(operation);
    out = ++asked_;
  }
  wake_.notify_all();
  return out;
}

StagingRing::Ticket StagingRing::copy(const Transfer& transfer, bool staged) {
  return add(Copy{transfer, staged});
}
StagingRing::Ticket StagingRing::record(Event event, const Given& given) {
  return add(Record{event, given});
}
StagingRing::Ticket StagingRing::wait(Event event, const Mark& recorded) {
  return add(Wait{event, recorded});
}

bool StagingRing::has_ended(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  if (through_ >= ticket) return true;
  if (failure_) std::rethrow_exception(failure_);
  return false;
}

void StagingRing::settle(Ticket ticket) {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return through_ >= ticket || failure_; });
}

void StagingRing::await(Ticket ticket) {
  settle(ticket);
  static_cast<void>(has_ended(ticket));
}

void StagingRing::await_all() {
  Ticket last = 0;
  {
    const std::lock_guard lock(mutex_);
    last = asked_;
  }
  await(last);
}

bool StagingRing::has_work() const {
  return !failure_ && (!queue_.empty() || staging_.has_arrivals());
}

/// The stream comes first: pieces land when there is nothing to give it, or when a slot is wanted.
void StagingRing::serve() {
  sys::enter_service_thread(text("staging-", stream_));
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || has_work(); });
    if (!has_work()) return;
    std::optional<Operation> operation;
    if (!queue_.empty()) {
      operation = queue_.front();
      queue_.pop_front();
      ++current_;
    }
    lock.unlock();
    try {
      operation ? give(*operation) : land_first();
    } catch (...) {
      fail();
    }
    lock.lock();
  }
}

void StagingRing::give(const Operation& operation) {
  std::visit([this](const auto& it) { run(it); }, operation);
  given_ = current_;
  publish();
}

void StagingRing::run(const Copy& copy) {
  const auto& it = copy.transfer;
  if (!copy.staged) return device_.issue(stream_, it.direction, it.to, it.from, it.bytes);
  staging_.copy(it, current_, [this] { publish(); });
}

void StagingRing::run(const Record& record) {
  device_.do_record(record.event, stream_);
  if (record.given.call != nullptr) notices_.push_back({current_, record.given});
}

/// The other ring may wait for what this one still has to land.
void StagingRing::run(const Wait& wait) {
  const auto& recorded = wait.recorded;
  if (recorded.ring != nullptr && recorded.ring != this) {
    while (!recorded.ring->has_ended(recorded.ticket) && staging_.has_arrivals()) land_first();
    recorded.ring->await(recorded.ticket);
  }
  device_.do_wait(stream_, wait.event);
}

void StagingRing::land_first() {
  staging_.land_first();
  publish();
}

/// Who is told comes first: whoever waits for the record then finds it told.
void StagingRing::publish() {
  const auto through = staging_.has_arrivals() ? staging_.first_arrival() - 1 : given_;
  while (!notices_.empty() && notices_.front().ticket <= through) {
    const auto given = notices_.front().given;
    notices_.pop_front();
    given.call(given.context, given.token);
  }
  {
    const std::lock_guard lock(mutex_);
    through_ = through;
  }
  ended_.notify_all();
}

void StagingRing::fail() {
  {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    queue_.clear();
  }
  notices_.clear();
  ended_.notify_all();
}

}  // namespace spillway::device
