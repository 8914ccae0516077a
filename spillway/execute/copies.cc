#include "spillway/execute/copies.h"

#include <algorithm>
#include <exception>

#include "spillway/base/thread.h"
#include "spillway/execute/arenas.h"
#include "spillway/execute/dependency_tracker.h"
#include "spillway/memory/near.h"

namespace spillway::execute {

using device::Direction;
using plan::Index;

static_assert(plan::kGoodCopy == device::kGoodCopy);

namespace {

/// The order of a heap whose top is due first.
bool later(const CopyLane::Copy& a, const CopyLane::Copy& b) {
  return a.deadline > b.deadline;
}

}  // namespace

CopyLane::CopyLane(device::Device& device, Direction direction, DeviceUpdates* updates)
    : device_(device),
      direction_(direction),
      updates_(updates),
      stream_(updates == nullptr ? device.make_copy_stream() : device.make_stream()) {
  for (auto& event : events_) event = device.make_event();
  thread_ = start_thread([this] { serve(); });
}

CopyLane::~CopyLane() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void CopyLane::start(const Copy& copy) {
  {
    const std::lock_guard lock(mutex_);
    ready_.push_back(copy);
    std::push_heap(ready_.begin(), ready_.end(), later);
  }
  wake_.notify_all();
}

CopyLane::Front CopyLane::front() const {
  const std::lock_guard lock(mutex_);
  auto out = front_;
  if (out.under_way > 0) {
    out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - waits_from_).count();
  }
  return out;
}

void CopyLane::show_front(const std::deque<UnderWay>& under_way) {
  front_ = {};
  if (under_way.empty()) return;
  const auto& copy = under_way.front().copy;
  front_ = {.task = copy.task, .bytes = copy.bytes, .under_way = under_way.size()};
}

void CopyLane::serve() {
  if (const auto node = device_.node()) memory::stay_near(*node);
  std::deque<UnderWay> under_way;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || !ready_.empty() || !under_way.empty(); });
    if (stop_ && under_way.empty()) return;
    while (!ready_.empty() && under_way.size() < kDepth) {
      std::pop_heap(ready_.begin(), ready_.end(), later);
      auto& it = under_way.emplace_back(UnderWay{ready_.back(), {}, {}});
      ready_.pop_back();
      if (under_way.size() == 1) waits_from_ = std::chrono::steady_clock::now();
      show_front(under_way);
      lock.unlock();
      issue(it);
      lock.lock();
    }
    lock.unlock();
    end(under_way.front());
    under_way.pop_front();
    lock.lock();
    waits_from_ = std::chrono::steady_clock::now();
    show_front(under_way);
  }
}

void CopyLane::issue(UnderWay& it) {
  auto* const mark = it.copy.mark;
  const auto number = issued_++;
  it.event = mark != nullptr ? mark->event : events_[number % kDepth];
  try {
    if (it.copy.after) device_.wait(stream_, *it.copy.after);
    if (updates_ != nullptr) {
      updates_->run(device_, stream_, it.copy.updates);
    } else {
      device_.copy(stream_, direction_, it.copy.to, it.copy.from, it.copy.bytes);
    }
    if (mark != nullptr) mark->number = number;
    device_.record(it.event, stream_, {mark != nullptr ? it.copy.issued : nullptr, it.copy.context, it.copy.token});
  } catch (...) {
    it.error = std::current_exception();
  }
}

void CopyLane::end(UnderWay& it) {
  try {
    if (!it.error) device_.synchronise(it.event);
  } catch (...) {
    it.error = std::current_exception();
  }
  it.copy.done(it.copy.context, it.copy.token, it.error);
}

Copies::Copies(const plan::Schedule& schedule, std::byte* host, device::Device& device, device::Stream compute,
               DeviceUpdates& updates, const Listener& listener)
    : schedule_(schedule),
      host_(host),
      device_(device),
      compute_(compute),
      listener_(listener),
      up_(device, Direction::to_device),
      down_(device, Direction::from_device),
      updates_(device, Direction::to_device, &updates) {
  for (auto& marks : marks_) {
    marks.resize(schedule.passes.size());
    for (auto& mark : marks) mark.event = device.make_event();
  }
  needs_.resize(schedule.tasks.size());
  std::vector<std::uint8_t> seen(2 * schedule.tasks.size(), 0);
  for (Index t = 0; t < schedule.tasks.size(); ++t) {
    if (!plan::is_of_device(schedule.tasks[t].lane)) continue;
    std::fill(seen.begin(), seen.end(), std::uint8_t{0});
    collect(t, false, seen, needs_[t]);
  }
  make_marks();
}

void Copies::make_marks() {
  feeds_.assign(schedule_.tasks.size(), 0);
  for (const auto& pass : schedule_.passes) {
    for (const auto& need : schedule_.tasks[pass.task].needs) {
      if (feeds_pass(schedule_, need.task, pass.task)) feeds_[need.task] = 1;
    }
  }
  for (auto& marks : fed_) {
    marks.resize(schedule_.tasks.size());
    for (Index t = 0; t < marks.size(); ++t) {
      if (feeds_[t] != 0) marks[t].event = device_.make_event();
    }
  }
}

/// The last copy of each lane comes after the lane's others. The mark of a copy that the instance skips is older.
void Copies::await_needs(std::uint64_t instance, Index pass) {
  std::array<const Mark*, plan::kLanes.size()> last{};
  const auto task = schedule_.passes[pass].task;
  for (const auto& need : schedule_.tasks[task].needs) {
    if (feeds_[need.task] == 0 || (need.previous && instance == 0)) continue;
    const auto wanted = instance - (need.previous ? 1 : 0);
    const auto& mark = fed_[wanted % 2][need.task];
    if (mark.instance != wanted) continue;
    auto& latest = last[static_cast<std::size_t>(schedule_.tasks[need.task].lane)];
    if (latest == nullptr || mark.number > latest->number) latest = &mark;
  }
  for (const auto* mark : last) {
    if (mark != nullptr) device_.wait(compute_, mark->event);
  }
}

/// A copy that an instance skips has waited for nothing: who follows it waits for its passes.
void Copies::collect(Index task, bool previous, std::vector<std::uint8_t>& seen, std::vector<Need>& out) const {
  for (const auto& need : schedule_.tasks[task].needs) {
    const bool before = previous || need.previous;
    if (previous && need.previous) continue;  // of two instances before: everything has ended
    auto& mark = seen[2 * need.task + (before ? 1 : 0)];
    if (mark != 0) continue;
    mark = 1;
    const auto& it = schedule_.tasks[need.task];
    if (it.op == plan::Op::compute) {
      if (!schedule_.passes[it.what.index].on_host) out.push_back({it.what.index, before});
    } else if (plan::is_of_device(it.lane)) {
      collect(need.task, before, seen, out);
    }
  }
}

void Copies::begin(std::uint64_t instance) {
  const std::lock_guard lock(mutex_);
  before_[instance % 2] = last_;
}

void Copies::issued(std::uint64_t instance, Index pass) {
  if (schedule_.passes[pass].on_host) return;
  const std::lock_guard lock(mutex_);
  auto& mark = marks_[instance % 2][pass];
  mark.instance = instance;
  last_ = mark.event;
  device_.record(mark.event, compute_);
}

/// An instance that skips a pass has come past it with the passes before.
std::optional<Index> Copies::issued_up_to(Index pass, std::uint64_t instance) const {
  const auto& marks = marks_[instance % 2];
  for (auto v = pass + 1; v-- > 0;) {
    if (marks[v].instance == instance) return v;
  }
  return std::nullopt;
}

/// The pass among these that was issued last: the stream of passes has come to it after all others.
std::optional<device::Event> Copies::last_of(const std::vector<Need>& needs, std::uint64_t instance) {
  std::optional<device::Event> out;
  std::uint64_t latest = 0;
  const std::lock_guard lock(mutex_);
  for (const auto& need : needs) {
    if (need.previous && instance == 0) continue;
    const auto wanted = instance - (need.previous ? 1 : 0);
    const auto pass = issued_up_to(need.pass, wanted);
    const auto order = wanted * (schedule_.passes.size() + 1) + (pass ? *pass + 1 : 0) + 1;
    if (order <= latest) continue;
    latest = order;
    out = pass ? marks_[wanted % 2][*pass].event : before_[wanted % 2];
  }
  return out;
}

void Copies::start(std::uint64_t instance, Index task, Bytes bytes, std::uint64_t deadline, std::uint64_t token) {
  const auto& it = schedule_.tasks[task];
  CopyLane::Copy copy{.after = last_of(needs_[task], instance),
                      .deadline = deadline,
                      .issued = listener_.issued,
                      .done = listener_.done,
                      .context = listener_.context,
                      .token = token,
                      .task = task};
  if (feeds_[task] != 0) {
    copy.mark = &fed_[instance % 2][task];
    copy.mark->instance = instance;
  }
  if (traits(it.lane).server == plan::Server::device) {
    copy.updates = it.what.index;
    return updates_.start(copy);
  }
  const Arenas arenas(host_, device_.memory().data());
  copy.to = arenas.at(schedule_, it.to);
  copy.from = arenas.at(schedule_, it.from);
  copy.bytes = bytes;
  (plan::traits(it.lane).fetches ? up_ : down_).start(copy);
}

std::map<plan::Lane, CopyLane::Front> Copies::fronts() const {
  return {{plan::Lane::to_device, up_.front()},
          {plan::Lane::from_device, down_.front()},
          {plan::Lane::device_update, updates_.front()}};
}

}  // namespace spillway::execute
