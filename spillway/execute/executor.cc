#include "spillway/execute/executor.h"

#include <algorithm>

#include "spillway/base/error.h"

namespace spillway::execute {

using plan::Lane;
using plan::Phase;
using plan::Task;
using plan::TaskKind;

namespace {

Field field_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::read_weight:
    case TaskKind::write_weight:
      return Field::weight;
    case TaskKind::read_state:
    case TaskKind::write_state:
      return Field::state;
    case TaskKind::read_grad:
    case TaskKind::write_grad:
      return Field::grad;
    case TaskKind::write_rows:
      return Field::rows;
    default:
      return Field::activation;
  }
}

}  // namespace

Executor::Executor(const plan::Schedule& schedule, std::byte* arena, Store* store, UpdateWork& work, UpdateCores cores)
    : schedule_(schedule), arena_(arena), store_(store), work_(work) {
  if (cores.own == 0) patient_ = plan::patient_updates(schedule);
  const auto n = schedule.tasks.size();
  same_.resize(n);
  next_.resize(n);
  for (Index t = 0; t < n; ++t) {
    for (const auto& need : schedule.tasks[t].needs) (need.previous ? next_ : same_)[need.task].push_back(t);
  }
  for (auto& bank : banks_) {
    bank.waiting.assign(n, 0);
    bank.ended.assign(n, 1);
    bank.kept.assign(schedule.update_task.size(), 0);
    bank.times.assign(n, {});
  }
  last_times_.assign(n, {});
  visit_ready_.assign(schedule.visits.size(), 0);
  for (auto* heap : {&updates_, &patient_updates_}) heap->reserve(n);
  early_.reserve(schedule.update_task.size());
  for (auto* list : {&skipped_, &caller_transfers_, &update_transfers_}) list->reserve(n);
  visit_ = schedule.visits.size();
  update_thread_ = std::thread([this] { update_lane(); });
  const auto busy = cores.own > 0 ? 1U : 2U;  // the update thread; the caller
  for (unsigned i = busy; i < std::max(cores.own, cores.shared); ++i) helpers_.emplace_back([this] { helper_lane(); });
}

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  update_wake_.notify_all();
  helper_wake_.notify_all();
  update_thread_.join();
  for (auto& helper : helpers_) helper.join();
  // Completions refer to this object: wait for what the path still has.
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return in_flight_ == 0; });
}

double Executor::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - epoch_).count();
}

bool Executor::runs(const Bank& its_bank, const Task& task) const {
  return runs(its_bank.mode, task) && !(schedule_.settled_by_early(task) && its_bank.kept[task.subject]);
}

bool Executor::runs(const Mode& mode, const Task& task) {
  switch (task.phase) {
    case Phase::update:
      return mode.update && mode.updates % task.every == task.turn;
    case Phase::forward:  // the weights are needed by the update, too
      return mode.visits || (mode.update && task.kind == TaskKind::read_weight);
    case Phase::head_loss:
      return mode.visits;
    case Phase::backward:
    case Phase::ahead:
      return mode.backward;
    case Phase::early:
      return mode.early;
  }
  return true;
}

// ---- instances ----

void Executor::begin(Mode mode) {
  std::unique_lock lock(mutex_);
  const auto instance = instances_;
  auto& now_bank = bank(instance);
  help_until(lock, idle_, [&] { return !now_bank.open; });
  throw_failure();
  const bool first = instance == 0;
  auto& before = bank(instance + 1);
  const auto n = schedule_.tasks.size();
  now_bank.instance = instance;
  open_bank(now_bank, mode);
  std::fill(visit_ready_.begin(), visit_ready_.end(), 0);
  for (Index t = 0; t < n; ++t) {
    std::uint32_t count = 1;  // kept back until all are counted
    for (const auto& need : schedule_.tasks[t].needs) count += !need.previous || (!first && !before.ended[need.task]);
    now_bank.waiting[t] = count;
    now_bank.ended[t] = 0;
    now_bank.times[t] = {};
  }
  ++instances_;
  visit_ = 0;
  caller_transfers_.clear();
  for (Index t = 0; t < n; ++t) {
    if (--now_bank.waiting[t] == 0) {
      skipped_.clear();
      make_ready({instance, t}, caller_transfers_, skipped_);
      while (!skipped_.empty()) {
        const auto start = skipped_.back();
        skipped_.pop_back();
        end_task(start, caller_transfers_);
      }
    }
  }
  lock.unlock();
  launch(caller_transfers_);
}

void Executor::open_bank(Bank& its_bank, Mode mode) {
  its_bank.mode = mode;
  its_bank.open = true;
  its_bank.left = schedule_.tasks.size();
  std::fill(its_bank.kept.begin(), its_bank.kept.end(), std::uint8_t{0});
  for (const auto chunk : early_) its_bank.kept[chunk] = mode.kept ? 1 : 0;
  early_.clear();
}

void Executor::make_ready(Start start, std::vector<Start>& transfers, std::vector<Start>& skipped) {
  const auto& task = schedule_.tasks[start.task];
  auto& its_bank = bank(start.instance);
  if (!runs(its_bank, task)) {
    skipped.push_back(start);
    return;
  }
  its_bank.times[start.task].start = now();
  switch (task.lane) {
    case Lane::read:
    case Lane::write:
      transfers.push_back(start);
      ++in_flight_;
      break;
    case Lane::update:
      push(!patient_.empty() && patient_[start.task] ? patient_updates_ : updates_,
           {start.instance * schedule_.positions + task.deadline, start});
      update_wake_.notify_one();
      break;
    case Lane::compute:
      visit_ready_[task.subject] = 1;
      compute_wake_.notify_all();
      break;
  }
}

void Executor::push(std::vector<UpdateEntry>& heap, UpdateEntry entry) {
  heap.push_back(entry);
  std::push_heap(heap.begin(), heap.end());
}

void Executor::end_task(Start start, std::vector<Start>& transfers) {
  // A worklist, because tasks that are skipped end at once and release others.
  std::vector<Start>& work = skipped_;
  const auto bottom = work.size();
  work.push_back(start);
  while (work.size() > bottom) {
    const auto it = work.back();
    work.pop_back();
    auto& its_bank = bank(it.instance);
    its_bank.ended[it.task] = 1;
    for (const auto follower : same_[it.task]) {
      if (--its_bank.waiting[follower] == 0) make_ready({it.instance, follower}, transfers, work);
    }
    if (it.instance + 1 < instances_) {
      auto& after = bank(it.instance + 1);
      for (const auto follower : next_[it.task]) {
        if (--after.waiting[follower] == 0) make_ready({it.instance + 1, follower}, transfers, work);
      }
    }
    if (--its_bank.left == 0) {
      its_bank.open = false;
      std::copy(its_bank.times.begin(), its_bank.times.end(), last_times_.begin());
      idle_.notify_all();
      compute_wake_.notify_all();
    }
  }
}

// ---- the caller ----

const plan::Visit* Executor::next() {
  std::unique_lock lock(mutex_);
  const auto& mode = bank(instances_ - 1).mode;
  while (visit_ < schedule_.visits.size() && !runs(mode, schedule_.tasks[schedule_.visits[visit_].task])) ++visit_;
  if (visit_ == schedule_.visits.size()) return nullptr;
  const auto& visit = schedule_.visits[visit_];
  if (!visit_ready_[visit_] && !failure_) {
    const auto begin = now();
    auto& seconds = stalls_[cause_of_wait(visit)];
    help_until(lock, compute_wake_, [&] { return visit_ready_[visit_] != 0; });
    seconds += now() - begin;
  }
  throw_failure();
  bank(instances_ - 1).times[visit.task].start = now();
  return &visit;
}

std::string Executor::cause_of_wait(const plan::Visit& visit) const {
  // The deepest task that holds it up decides: a read before the update it feeds, a write before the read it delays.
  const auto instance = instances_ - 1;
  std::string cause = "update";
  Index task = visit.task;
  for (int depth = 0; depth < 8; ++depth) {
    const auto& bank_now = banks_[instance % banks_.size()];
    Index blocking = plan::kNone;
    for (const auto& need : schedule_.tasks[task].needs) {
      if (!need.previous && !bank_now.ended[need.task]) {
        blocking = need.task;
        if (schedule_.tasks[blocking].lane != Lane::update) break;
      }
    }
    if (blocking == plan::kNone) break;
    const auto lane = schedule_.tasks[blocking].lane;
    if (lane != Lane::compute) cause = lane == Lane::read ? "read" : lane == Lane::write ? "write" : "update";
    task = blocking;
  }
  return cause;
}

void Executor::done() {
  std::unique_lock lock(mutex_);
  const auto instance = instances_ - 1;
  const auto task = schedule_.visits[visit_].task;
  bank(instance).times[task].end = now();
  ++visit_;
  caller_transfers_.clear();
  skipped_.clear();
  end_task({instance, task}, caller_transfers_);
  lock.unlock();
  launch(caller_transfers_);
}

const std::vector<plan::Index>& Executor::end_early() {
  std::unique_lock lock(mutex_);
  if (instances_ == 0) return early_;
  bank(instances_ - 1).mode.early = false;  // those that are not ready yet are skipped when they are
  caller_transfers_.clear();
  drop_early(caller_transfers_);
  lock.unlock();
  launch(caller_transfers_);
  lock.lock();
  help_until(lock, compute_wake_, [&] { return !early_active_; });
  throw_failure();
  return early_;
}

void Executor::drop_early(std::vector<Start>& transfers) {
  const auto is_early = [&](const UpdateEntry& it) { return schedule_.tasks[it.start.task].phase == Phase::early; };
  skipped_.clear();
  while (true) {
    const auto it = std::find_if(updates_.begin(), updates_.end(), is_early);
    if (it == updates_.end()) break;
    const auto start = it->start;
    *it = updates_.back();
    updates_.pop_back();
    end_task(start, transfers);
  }
  std::make_heap(updates_.begin(), updates_.end());
}

void Executor::drain() {
  std::unique_lock lock(mutex_);
  help_until(lock, idle_, [&] { return !banks_[0].open && !banks_[1].open; });
  throw_failure();
}

std::vector<Times> Executor::last_times() const {
  const std::lock_guard lock(mutex_);
  return last_times_;
}

void Executor::fail(std::exception_ptr error) {
  if (!failure_) failure_ = std::move(error);
  compute_wake_.notify_all();
  idle_.notify_all();
}

void Executor::throw_failure() {
  if (failure_) std::rethrow_exception(failure_);
}

// ---- transfers ----

void Executor::launch(std::vector<Start>& transfers) {
  for (const auto& start : transfers) {
    const auto& task = schedule_.tasks[start.task];
    const auto& mode = bank(start.instance).mode;
    const bool updates = task.phase == Phase::update;
    try {
      store_->start({.direction = task.lane == Lane::read ? storage::Direction::read : storage::Direction::write,
                     .field = field_of(task.kind),
                     .subject = task.subject,
                     .memory = arena_ + schedule_.buffers[task.buffer].offset + task.buffer_offset,
                     .bytes = task.bytes,
                     .version = updates ? mode.updated : mode.step,
                     .image = updates && schedule_.makes_image(task.subject, mode.updates),
                     .deadline = start.instance * schedule_.positions + task.deadline,
                     .done = &Executor::transfer_done,
                     .context = this,
                     .token = start.instance * schedule_.tasks.size() + start.task});
    } catch (...) {
      const std::lock_guard lock(mutex_);
      fail(std::current_exception());
      --in_flight_;
    }
  }
  transfers.clear();
}

void Executor::transfer_done(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept {
  auto& self = *static_cast<Executor*>(context);
  const Start start{token / self.schedule_.tasks.size(), static_cast<Index>(token % self.schedule_.tasks.size())};
  thread_local std::vector<Start> ready;  // several paths end transfers at once; grows to its size and stays
  std::unique_lock lock(self.mutex_);
  self.bank(start.instance).times[start.task].end = self.now();
  if (error) {  // may come from within launch(): `ready` is in use
    self.fail(error);
  } else if (!self.failure_) {
    ready.clear();
    self.skipped_.clear();
    self.end_task(start, ready);
    lock.unlock();
    self.launch(ready);
    lock.lock();
  }
  // Counted down last: the destructor may run as soon as nothing is in flight.
  if (--self.in_flight_ == 0) self.idle_.notify_all();
}

// ---- updates ----

void Executor::update_lane() {
  std::unique_lock lock(mutex_);
  while (true) {
    update_wake_.wait(lock, [this] { return stop_ || (!failure_ && may_update()); });
    if (stop_) return;
    const auto start = pop_update();
    const auto chunk = schedule_.tasks[start.task].subject;
    const bool early = schedule_.tasks[start.task].phase == Phase::early;
    bank(start.instance).times[start.task].start = now();
    early_active_ = early;
    if (early) run_tiles(lock, chunk, work_.slices(chunk), true);
    lock.unlock();
    work_.prepare(chunk, early);
    lock.lock();
    run_tiles(lock, chunk, work_.tiles(chunk), false);
    early_active_ = false;
    if (early) {
      early_.push_back(chunk);
      compute_wake_.notify_all();
    }
    bank(start.instance).times[start.task].end = now();
    update_transfers_.clear();
    skipped_.clear();
    end_task(start, update_transfers_);
    lock.unlock();
    launch(update_transfers_);
    lock.lock();
  }
}

bool Executor::may_update() const {
  return !updates_.empty() || (caller_waits_ && !patient_updates_.empty());
}

Executor::Start Executor::pop_update() {
  const bool patient =
      caller_waits_ && !patient_updates_.empty() && (updates_.empty() || updates_.front() < patient_updates_.front());
  auto& heap = patient ? patient_updates_ : updates_;
  std::pop_heap(heap.begin(), heap.end());
  const auto start = heap.back().start;
  heap.pop_back();
  return start;
}

template <class Done>
void Executor::help_until(std::unique_lock<std::mutex>& lock, std::condition_variable& wake, const Done& is_done) {
  caller_waits_ = true;
  if (!patient_updates_.empty()) update_wake_.notify_one();
  while (!failure_ && !is_done()) {
    if (!help(lock)) wake.wait(lock);
  }
  caller_waits_ = false;
}

void Executor::run_tiles(std::unique_lock<std::mutex>& lock, Index chunk, std::size_t tiles, bool save) {
  next_tile_.store(0, std::memory_order_relaxed);
  active_ = {.busy = true, .chunk = chunk, .tiles = tiles, .inside = 1, .save = save};
  compute_wake_.notify_all();
  idle_.notify_all();
  helper_wake_.notify_all();
  lock.unlock();
  take_tiles(chunk, tiles, save);
  lock.lock();
  active_.busy = false;
  --active_.inside;
  update_wake_.wait(lock, [this] { return active_.inside == 0; });
}

void Executor::take_tiles(Index chunk, std::size_t tiles, bool save) {
  for (auto tile = next_tile_.fetch_add(1); tile < tiles; tile = next_tile_.fetch_add(1)) {
    if (save) {
      work_.save(chunk, tile);
    } else {
      work_.run(chunk, tile);
    }
  }
}

void Executor::helper_lane() {
  std::unique_lock lock(mutex_);
  while (true) {
    helper_wake_.wait(lock, [this] { return stop_ || helpers_may(); });
    if (stop_) return;
    help(lock);
  }
}

bool Executor::helpers_may() const noexcept {
  return has_tiles() && (caller_waits_ || patient_.empty());
}

bool Executor::has_tiles() const noexcept {
  return active_.busy && next_tile_.load(std::memory_order_relaxed) < active_.tiles;
}

bool Executor::help(std::unique_lock<std::mutex>& lock) {
  if (!has_tiles()) return false;
  const auto chunk = active_.chunk;
  const auto tiles = active_.tiles;
  const bool save = active_.save;
  ++active_.inside;
  lock.unlock();
  take_tiles(chunk, tiles, save);
  lock.lock();
  if (--active_.inside == 0) update_wake_.notify_all();
  return true;
}

}  // namespace spillway::execute
