#include "spillway/execute/update_lanes.h"

#include <algorithm>
#include <utility>

#include "spillway/base/thread.h"
#include "spillway/memory/near.h"

namespace spillway::execute {

using plan::Index;
using plan::Task;

UpdateLanes::UpdateLanes(const plan::Schedule& schedule, UpdateWork& work, UpdateCores cores, const Clock& clock,
                         std::mutex& mutex, Client& client)
    : schedule_(schedule), work_(work), clock_(clock), mutex_(mutex), client_(client) {
  if (cores.spare_caller) spared_cpu_ = memory::own_cpu();
  if (cores.own == 0) idle_priority_ = plan::idle_priority(schedule);
  // The caller is one of the cores that it shares.
  const auto threads = cores.own > 0 ? cores.own : std::max(2U, cores.shared) - 1;
  auto& nodes = cores.nodes;
  if (nodes.empty()) nodes.push_back({.threads = threads});
  nodes.resize(std::max(nodes.size(), schedule.update_lanes()));
  refits_ = schedule.has_refits();
  if (refits_) nodes.push_back({.threads = threads});
  for (const auto& options : nodes) add(options);
  try {
    for (auto& lane : lanes_) start_threads(*lane);  // when all are there
  } catch (...) {
    stop();
    throw;
  }
}

void UpdateLanes::add(const UpdateLane& options) {
  auto& lane = *lanes_.emplace_back(std::make_unique<Lane>());
  lane.number = lanes_.size() - 1;
  lane.pace = Pace(options.limit);
  lane.options = options;
  lane.queue.reserve(schedule_.tasks.size());
}

void UpdateLanes::start_threads(Lane& lane) {
  lane.helpers.reserve(lane.options.threads);
  lane.thread = start_thread([this, &lane] { run(lane); });
  for (unsigned i = 1; i < lane.options.threads; ++i) {
    lane.helpers.push_back(start_thread([this, &lane] { run_helper(lane); }));
  }
}

void UpdateLanes::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  for (auto& lane : lanes_) {
    lane->wake.notify_all();
    lane->helper_wake.notify_all();
  }
  for (auto& lane : lanes_) {
    if (lane->thread.joinable()) lane->thread.join();
    for (auto& helper : lane->helpers) helper.join();
    lane->helpers.clear();
  }
}

// ---- what the client asks ----

UpdateLanes::Lane& UpdateLanes::lane_of(const Task& task) {
  return task.op == plan::Op::refit ? *lanes_.back() : *lanes_[task.unit];
}

void UpdateLanes::push(Start start) {
  const auto& task = schedule_.tasks[start.task];
  auto& lane = lane_of(task);
  const bool early = task.when.phase == plan::Phase::early;
  lane.queue.push({start.instance * schedule_.positions + task.deadline, start, early},
                  !idle_priority_.empty() && idle_priority_[start.task]);
  lane.wake.notify_one();
}

void UpdateLanes::caller_waits(bool waits) {
  caller_waits_ = waits;
  if (!waits) return;
  for (auto& lane : lanes_) {
    if (lane->queue.has_idle_priority()) lane->wake.notify_one();
  }
}

bool UpdateLanes::help(Lock& lock) {
  if (spared_cpu_) return false;
  for (auto& lane : lanes_) {
    if (lane->pace.limits() || !has_tiles(*lane)) continue;
    help_lane(*lane, lock);
    return true;
  }
  return false;
}

bool UpdateLanes::idle() const noexcept {
  return std::ranges::none_of(lanes_, [&](const auto& lane) { return lane->busy || may_begin(*lane); });
}

std::optional<Start> UpdateLanes::take_early() {
  for (auto& lane : lanes_) {
    if (const auto start = lane->queue.take_early()) return start;
  }
  return std::nullopt;
}

bool UpdateLanes::early_active() const noexcept {
  return std::ranges::any_of(lanes_, [](const auto& lane) { return lane->early; });
}

std::vector<Updated> UpdateLanes::updated() const {
  std::vector<Updated> out;
  out.reserve(lanes_.size());
  for (const auto& lane : lanes_) out.push_back(lane->done);
  if (refits_) out.pop_back();
  return out;
}

// ---- the thread of a lane ----

/// Nothing but a later update waits for a refit: whatever else has work goes before it. A GPU that waits for its next
/// launch costs more than an update that waits for a CPU.
void UpdateLanes::stay_where(const Lane& lane) const {
  if (lane.options.near) memory::stay_near(*lane.options.near);
  const bool is_refits = refits_ && &lane == lanes_.back().get();
  if (spared_cpu_) memory::stay_off_core(*spared_cpu_);
  if (is_refits) memory::give_way(memory::kRefitNice);
  if (spared_cpu_ && !is_refits) memory::give_way(memory::kUpdateNice);
}

void UpdateLanes::run(Lane& lane) {
  stay_where(lane);
  Lock lock(mutex_);
  while (true) {
    lane.wake.wait(lock, [&] { return stop_ || (!halted_ && may_begin(lane)); });
    if (stop_) return;
    const auto start = lane.queue.pop(caller_waits_);
    lane.busy = true;
    const auto& task = schedule_.tasks[start.task];
    const auto began = clock_.now();
    client_.update_begins(start, began);
    if (task.op == plan::Op::refit) {
      refit(lock, lane, task.what.index);
    } else {
      update(lock, lane, task.what.index, task.when.phase == plan::Phase::early);
    }
    const auto ended = clock_.now();
    lane.done.elements += task.bytes;
    lane.done.seconds += ended - began;
    client_.update_ended(start, ended, lane.number, lock);
    lane.busy = false;
  }
}

bool UpdateLanes::may_begin(const Lane& lane) const noexcept {
  return lane.queue.has_task(caller_waits_);
}

void UpdateLanes::update(Lock& lock, Lane& lane, Index chunk, bool early) {
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
}

void UpdateLanes::refit(Lock& lock, Lane& lane, Index chunk) {
  lock.unlock();
  work_.begin_refit(chunk);
  lock.lock();
  for (unsigned part = 0; part < UpdateWork::kRefitParts; ++part) {
    const auto tiles = work_.refit_tiles(chunk, part);
    if (tiles > 0) run_tiles(lock, lane, {.chunk = chunk, .count = tiles, .part = Part::refit, .number = part});
  }
  lock.unlock();
  work_.end_refit(chunk);
  lock.lock();
}

// ---- tiles ----

void UpdateLanes::run_tiles(Lock& lock, Lane& lane, Tiles tiles) {
  lane.next_tile.store(0, std::memory_order_relaxed);
  tiles.busy = true;
  tiles.inside = 1;
  lane.active = tiles;
  client_.tiles_begin();
  lane.helper_wake.notify_all();
  lock.unlock();
  take_tiles(lane, tiles);
  lock.lock();
  lane.active.busy = false;
  --lane.active.inside;
  lane.wake.wait(lock, [&] { return lane.active.inside == 0; });
}

void UpdateLanes::take_tiles(Lane& lane, const Tiles& tiles) {
  for (auto tile = lane.next_tile.fetch_add(1); tile < tiles.count; tile = lane.next_tile.fetch_add(1)) {
    const auto began = lane.pace.limits() ? clock_.now() : 0;
    switch (tiles.part) {
      case Part::save:
        work_.save(tiles.chunk, tile);
        break;
      case Part::update:
        work_.run(tiles.chunk, tiles.number, tile, tiles.early);
        break;
      case Part::refit:
        work_.run_refit(tiles.chunk, static_cast<unsigned>(tiles.number), tile);
        break;
    }
    if (lane.pace.limits() && tiles.last) wait_for_pace(lane, tiles, began);
  }
}

/// One of the tiles is done.
void UpdateLanes::wait_for_pace(Lane& lane, const Tiles& tiles, double began) {
  const auto elements = static_cast<double>(schedule_.tasks[schedule_.update_task[tiles.chunk]].bytes);
  double end = 0;
  {
    const std::lock_guard lock(lane.pace_mutex);
    end = lane.pace.end(began, elements / static_cast<double>(tiles.count));
  }
  clock_.sleep_until(end);
}

void UpdateLanes::run_helper(Lane& lane) {
  stay_where(lane);
  Lock lock(mutex_);
  while (true) {
    lane.helper_wake.wait(lock, [&] { return stop_ || helpers_may(lane); });
    if (stop_) return;
    help_lane(lane, lock);
  }
}

bool UpdateLanes::helpers_may(const Lane& lane) const noexcept {
  return has_tiles(lane) && (caller_waits_ || idle_priority_.empty());
}

bool UpdateLanes::has_tiles(const Lane& lane) noexcept {
  return lane.active.busy && lane.next_tile.load(std::memory_order_relaxed) < lane.active.count;
}

void UpdateLanes::help_lane(Lane& lane, Lock& lock) {
  const auto tiles = lane.active;
  ++lane.active.inside;
  lock.unlock();
  take_tiles(lane, tiles);
  lock.lock();
  if (--lane.active.inside == 0) lane.wake.notify_all();
}

}  // namespace spillway::execute
