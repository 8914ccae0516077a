#include "spillway/execute/executor.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/base/thread.h"
#include "spillway/memory/near.h"

namespace spillway::execute {

using plan::Lane;
using plan::Phase;
using plan::Task;

namespace {

/// As what the store knows it.
Field field_of(plan::ObjectKind kind) {
  switch (kind) {
    case plan::ObjectKind::weight:
      return Field::weight;
    case plan::ObjectKind::state:
      return Field::state;
    case plan::ObjectKind::gradient:
      return Field::grad;
    case plan::ObjectKind::sparse_gradient:
      return Field::rows;
    default:
      return Field::activation;
  }
}

}  // namespace

Executor::Executor(const plan::Schedule& schedule, std::byte* arena, Store* store, UpdateWork& work, UpdateCores cores,
                   ComputeDevice device)
    : schedule_(schedule), arena_(arena), store_(store), work_(work) {
  if (device.device != nullptr) {
    copies_ = std::make_unique<Copies>(schedule, arena, *device.device, device.stream, *device.updates);
  }
  if (cores.own == 0) idle_priority_ = plan::idle_priority(schedule);
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
  early_.reserve(schedule.update_task.size());
  for (auto* list : {&skipped_, &caller_transfers_}) list->reserve(n);
  visit_ = schedule.visits.size();
  // The caller is one of the cores that it shares.
  const auto threads = cores.own > 0 ? cores.own : std::max(2U, cores.shared) - 1;
  if (cores.nodes.empty()) cores.nodes.push_back({.threads = threads});
  make_lanes(std::move(cores.nodes), threads);
}

void Executor::make_lanes(std::vector<UpdateLane> lanes, unsigned fit_threads) {
  auto count = lanes.size();
  for (const auto& task : schedule_.tasks) {
    if (task.lane == Lane::update) count = std::max<std::size_t>(count, task.unit + 1U);
  }
  lanes.resize(count);
  fits_ = std::ranges::any_of(schedule_.tasks, [](const Task& task) { return task.op == plan::Op::refit; });
  if (fits_) lanes.push_back({.threads = fit_threads});
  for (auto& options : lanes) {
    auto& lane = *updates_.emplace_back(std::make_unique<Updates>());
    lane.pace = Pace(options.limit);
    lane.options = std::move(options);
    for (auto* heap : {&lane.ready, &lane.when_idle}) heap->reserve(schedule_.tasks.size());
    lane.transfers.reserve(schedule_.tasks.size());
  }
  try {
    for (auto& lane : updates_) start_threads(*lane);  // when all are there
  } catch (...) {
    stop_lanes();
    throw;
  }
}

void Executor::start_threads(Updates& lane) {
  lane.helpers.reserve(lane.options.threads);
  lane.thread = start_thread([this, &lane] { update_lane(lane); });
  for (unsigned i = 1; i < lane.options.threads; ++i) {
    lane.helpers.push_back(start_thread([this, &lane] { helper_lane(lane); }));
  }
}

void Executor::stop_lanes() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  for (auto& lane : updates_) {
    lane->wake.notify_all();
    lane->helper_wake.notify_all();
  }
  for (auto& lane : updates_) {
    if (lane->thread.joinable()) lane->thread.join();
    for (auto& helper : lane->helpers) helper.join();
  }
}

Executor::~Executor() {
  stop_lanes();
  // Completions refer to this object: wait for what the path still has.
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return in_flight_ == 0; });
}

double Executor::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - epoch_).count();
}

bool Executor::runs(const Bank& its_bank, const Task& task) const {
  if (!runs(its_bank.mode, task)) return false;
  if (task.op == plan::Op::refit || follows_refit(task)) return fits(task);
  if (task.stays && its_bank.mode.visits) {
    return schedule_.runs_once(task) ? its_bank.sends.stored : its_bank.sends.updated;
  }
  return !(schedule_.settled_by_early(task) && its_bank.kept[task.what.index]);
}

/// Whether a visit has left something to learn of any of the task's chunks.
bool Executor::fits(const Task& task) const {
  for (auto c = task.what.index; c < task.what.end(); ++c) {
    if (work_.fits(c)) return true;
  }
  return false;
}

bool Executor::is_for_update(const Task& task) const {
  if (task.moves(Lane::to_device, plan::ObjectKind::weight)) return schedule_.updated_there(task.what.index);
  return task.moves(Lane::read, plan::ObjectKind::weight) && schedule_.update_task[task.what.index] != plan::kNone;
}

bool Executor::runs(const Mode& mode, const Task& task) const {
  switch (task.phase) {
    case Phase::update:
      return mode.update && mode.updates % task.every == task.turn;
    case Phase::forward:  // the weights are needed by the update, too, where there is one
      if (mode.visits) return true;
      return mode.update && is_for_update(task);
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
  if (store_ != nullptr && mode.update) store_->reserve_gradients(mode.updated);
  if (store_ != nullptr && mode.backward) store_->expect_gradients(mode.step);
  std::unique_lock lock(mutex_);
  const auto instance = instances_;
  auto& now_bank = bank(instance);
  help_until(lock, idle_, [&] { return !now_bank.open; });
  throw_failure();
  const bool first = instance == 0;
  auto& before = bank(instance + 1);
  const auto n = schedule_.tasks.size();
  now_bank.instance = instance;
  if (copies_) copies_->begin(instance);
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
  if (mode.update || mode.stored) changed_.updated = true;
  if (mode.stored) changed_.stored = true;
  its_bank.sends = changed_;
  if (mode.visits) changed_ = {.updated = false, .stored = false};
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
  switch (traits(task.lane).server) {
    case plan::Server::paths:
    case plan::Server::link:
    case plan::Server::device:
      transfers.push_back(start);
      break;
    case plan::Server::cores: {
      auto& lane = lane_of(task);
      push(!idle_priority_.empty() && idle_priority_[start.task] ? lane.when_idle : lane.ready,
           {start.instance * schedule_.positions + task.deadline, start});
      lane.wake.notify_one();
      break;
    }
    case plan::Server::caller:
      visit_ready_[task.what.index] = 1;
      caller_waits_ = false;  // from now on, not when it wakes up: no update of idle priority begins beside its visit
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
      if (its_bank.mode.visits && its_bank.mode.backward) {
        std::copy(its_bank.times.begin(), its_bank.times.end(), last_times_.begin());
      }
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
    help_until(lock, compute_wake_, [&] { return visit_ready_[visit_] != 0; });
    if (!failure_) note_wait(visit.task, begin);
  }
  throw_failure();
  bank(instances_ - 1).times[visit.task].start = now();
  return &visit;
}

void Executor::note_wait(Index task, double begin) {
  const auto instance = instances_ - 1;
  waits_.add(schedule_, task, begin, now(), [&](Index need, bool previous) -> const Times* {
    if (previous && instance == 0) return nullptr;
    return &bank(previous ? instance - 1 : instance).times[need];
  });
}

void Executor::done() {
  if (copies_) copies_->issued(instances_ - 1, static_cast<Index>(visit_));
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
  help_until(lock, compute_wake_, [&] { return !early_active(); });
  throw_failure();
  return early_;
}

void Executor::drop_early(std::vector<Start>& transfers) {
  const auto is_early = [&](const UpdateEntry& it) { return schedule_.tasks[it.start.task].phase == Phase::early; };
  skipped_.clear();
  for (auto& lane : updates_) {
    auto& ready = lane->ready;
    while (true) {
      const auto it = std::ranges::find_if(ready, is_early);
      if (it == ready.end()) break;
      const auto start = it->start;
      *it = ready.back();
      ready.pop_back();
      end_task(start, transfers);
    }
    std::make_heap(ready.begin(), ready.end());
  }
}

bool Executor::early_active() const noexcept {
  return std::ranges::any_of(updates_, [](const auto& lane) { return lane->early; });
}

void Executor::drain() {
  std::unique_lock lock(mutex_);
  help_until(lock, idle_, [&] { return !banks_[0].open && !banks_[1].open; });
  throw_failure();
}

std::vector<Updated> Executor::updated() const {
  const std::lock_guard lock(mutex_);
  std::vector<Updated> out;
  for (const auto& lane : updates_) out.push_back(lane->done);
  if (fits_) out.pop_back();
  return out;
}

std::vector<Times> Executor::last_times() const {
  const std::lock_guard lock(mutex_);
  return last_times_;
}

void Executor::fail(std::exception_ptr error) {
  if (!failure_ && store_ != nullptr) store_->give_up(error);
  if (!failure_) failure_ = std::move(error);
  compute_wake_.notify_all();
  idle_.notify_all();
}

void Executor::throw_failure() {
  if (failure_) std::rethrow_exception(failure_);
}

// ---- transfers ----

/// Counted here, and not where they get ready: what a failure keeps from getting here is waited for by nobody.
void Executor::launch(std::vector<Start>& transfers) {
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

void Executor::launch_transfer(const Start& start, const Task& task) {
  const auto deadline = start.instance * schedule_.positions + task.deadline;
  const auto token = start.instance * schedule_.tasks.size() + start.task;
  if (is_of_device(task.lane)) {
    return copies_->start(start.instance, start.task, deadline, &Executor::transfer_done, this, token);
  }
  const auto& mode = bank(start.instance).mode;
  const bool updates = task.phase == Phase::update;
  const auto& memory = task.memory();
  store_->start({.direction = traits(task.lane).fetches ? storage::Direction::read : storage::Direction::write,
                 .field = field_of(task.what.kind),
                 .subject = task.what.index,
                 .memory = arena_ + schedule_.buffers[memory.buffer].offset + memory.offset,
                 .bytes = task.bytes,
                 .version = updates ? mode.updated : mode.step,
                 .snapshot = updates && schedule_.makes_snapshot(task.what.index, mode.updates),
                 .deadline = deadline,
                 .done = &Executor::transfer_done,
                 .context = this,
                 .token = token,
                 .last_path = &bank(start.instance).times[start.task].path});
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
    try {
      ready.clear();
      self.skipped_.clear();
      self.end_task(start, ready);
      lock.unlock();
      self.launch(ready);
      lock.lock();
    } catch (...) {
      if (!lock) lock.lock();
      self.fail(std::current_exception());
    }
  }
  // Counted down last: the destructor may run as soon as nothing is in flight.
  if (--self.in_flight_ == 0) self.idle_.notify_all();
}

// ---- updates ----

Executor::Updates& Executor::lane_of(const Task& task) {
  return task.op == plan::Op::refit ? *updates_.back() : *updates_[task.unit];
}

/// Nothing but a later update waits for a fit: whatever else has work goes before it.
void Executor::stay_where(const Updates& lane) const {
  if (lane.options.near) memory::stay_near(*lane.options.near);
  if (fits_ && &lane == updates_.back().get()) memory::give_way();
}

void Executor::update_lane(Updates& lane) {
  stay_where(lane);
  std::unique_lock lock(mutex_);
  while (true) {
    lane.wake.wait(lock, [&] { return stop_ || (!failure_ && may_update(lane)); });
    if (stop_) return;
    const auto start = pop_update(lane);
    const auto& task = schedule_.tasks[start.task];
    auto& times = bank(start.instance).times[start.task];
    times.start = now();
    if (task.op == plan::Op::refit) {
      fit(lock, lane, task.what.index);
    } else {
      update(lock, lane, task.what.index, task.phase == Phase::early);
    }
    times.end = now();
    lane.done.elements += task.bytes;
    lane.done.seconds += times.end - times.start;
    lane.transfers.clear();
    skipped_.clear();
    end_task(start, lane.transfers);
    lock.unlock();
    launch(lane.transfers);
    lock.lock();
  }
}

void Executor::update(std::unique_lock<std::mutex>& lock, Updates& lane, Index chunk, bool early) {
  lane.early = early;
  if (early) run_tiles(lock, lane, {.chunk = chunk, .count = work_.slices(chunk), .part = Part::save, .early = true});
  lock.unlock();
  work_.prepare(chunk, early);
  lock.lock();
  for (std::size_t part = 0, parts = work_.parts(chunk); part < parts; ++part) {
    run_tiles(
        lock, lane,
        {.chunk = chunk, .count = work_.tiles(chunk, part), .early = early, .number = part, .last = part + 1 == parts});
  }
  lock.unlock();
  work_.finish(chunk, early);
  lock.lock();
  lane.early = false;
  if (!early) return;
  early_.push_back(chunk);
  compute_wake_.notify_all();
}

void Executor::fit(std::unique_lock<std::mutex>& lock, Updates& lane, Index chunk) {
  lock.unlock();
  work_.begin_fit(chunk);
  lock.lock();
  for (unsigned part = 0; part < UpdateWork::kFitParts; ++part) {
    const auto tiles = work_.fit_tiles(chunk, part);
    if (tiles > 0) run_tiles(lock, lane, {.chunk = chunk, .count = tiles, .part = Part::fit, .number = part});
  }
  lock.unlock();
  work_.end_fit(chunk);
  lock.lock();
}

bool Executor::may_update(const Updates& lane) const noexcept {
  return !lane.ready.empty() || (caller_waits_ && !lane.when_idle.empty());
}

Executor::Start Executor::pop_update(Updates& lane) {
  const bool idle =
      caller_waits_ && !lane.when_idle.empty() && (lane.ready.empty() || lane.ready.front() < lane.when_idle.front());
  auto& heap = idle ? lane.when_idle : lane.ready;
  std::pop_heap(heap.begin(), heap.end());
  const auto start = heap.back().start;
  heap.pop_back();
  return start;
}

template <class Done>
void Executor::help_until(std::unique_lock<std::mutex>& lock, std::condition_variable& wake, const Done& is_done) {
  caller_waits_ = true;
  for (auto& lane : updates_) {
    if (!lane->when_idle.empty()) lane->wake.notify_one();
  }
  while (!failure_ && !is_done()) {
    if (!help(lock)) wake.wait(lock);
  }
  caller_waits_ = false;
}

void Executor::run_tiles(std::unique_lock<std::mutex>& lock, Updates& lane, Tiles tiles) {
  lane.next_tile.store(0, std::memory_order_relaxed);
  tiles.busy = true;
  tiles.inside = 1;
  lane.active = tiles;
  compute_wake_.notify_all();
  idle_.notify_all();
  lane.helper_wake.notify_all();
  lock.unlock();
  take_tiles(lane, tiles);
  lock.lock();
  lane.active.busy = false;
  --lane.active.inside;
  lane.wake.wait(lock, [&] { return lane.active.inside == 0; });
}

void Executor::take_tiles(Updates& lane, const Tiles& tiles) {
  for (auto tile = lane.next_tile.fetch_add(1); tile < tiles.count; tile = lane.next_tile.fetch_add(1)) {
    const auto began = lane.pace.limits() ? now() : 0;
    switch (tiles.part) {
      case Part::save:
        work_.save(tiles.chunk, tile);
        break;
      case Part::update:
        work_.run(tiles.chunk, tiles.number, tile, tiles.early);
        break;
      case Part::fit:
        work_.run_fit(tiles.chunk, static_cast<unsigned>(tiles.number), tile);
        break;
    }
    if (lane.pace.limits() && tiles.last) wait_for_pace(lane, tiles.chunk, tiles.count, began);
  }
}

/// One of the chunk's `tiles` is done.
void Executor::wait_for_pace(Updates& lane, Index chunk, std::size_t tiles, double began) {
  const auto elements = static_cast<double>(schedule_.tasks[schedule_.update_task[chunk]].bytes);
  double end = 0;
  {
    const std::lock_guard lock(lane.pace_mutex);
    end = lane.pace.end(began, elements / static_cast<double>(tiles));
  }
  std::this_thread::sleep_until(
      epoch_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(end)));
}

void Executor::helper_lane(Updates& lane) {
  stay_where(lane);
  std::unique_lock lock(mutex_);
  while (true) {
    lane.helper_wake.wait(lock, [&] { return stop_ || helpers_may(lane); });
    if (stop_) return;
    help_lane(lane, lock);
  }
}

bool Executor::helpers_may(const Updates& lane) const noexcept {
  return has_tiles(lane) && (caller_waits_ || idle_priority_.empty());
}

bool Executor::has_tiles(const Updates& lane) noexcept {
  return lane.active.busy && lane.next_tile.load(std::memory_order_relaxed) < lane.active.count;
}

void Executor::help_lane(Updates& lane, std::unique_lock<std::mutex>& lock) {
  const auto tiles = lane.active;
  ++lane.active.inside;
  lock.unlock();
  take_tiles(lane, tiles);
  lock.lock();
  if (--lane.active.inside == 0) lane.wake.notify_all();
}

bool Executor::help(std::unique_lock<std::mutex>& lock) {
  for (auto& lane : updates_) {
    if (lane->pace.limits() || !has_tiles(*lane)) continue;
    help_lane(*lane, lock);
    return true;
  }
  return false;
}

}  // namespace spillway::execute
