#include "spillway/execute/thread_pool.h"

#include <chrono>

#include "spillway/base/thread.h"

namespace spillway::execute {
namespace {

/// About as long as a tile takes: the pause between two loops that follow each other is shorter, and being woken takes
/// longer than most of them. Whoever else wants the core has it.
constexpr auto kPatience = std::chrono::microseconds(60);

template <class Condition>
void yield_until(const Condition& met) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!met() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace

ThreadPool::ThreadPool(unsigned threads) {
  workers_.reserve(threads);
  try {
    for (unsigned i = 1; i < threads; ++i) workers_.push_back(start_thread([this] { work(); }));
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run_erased(std::size_t tiles, const void* body, Call call) {
  if (tiles > 1 && !workers_.empty()) {
    const std::unique_lock one(one_, std::try_to_lock);
    if (one) return share(tiles, body, call);
  }
  for (std::size_t tile = 0; tile < tiles; ++tile) call(body, tile);
}

void ThreadPool::share(std::size_t tiles, const void* body, Call call) {
  {
    const std::lock_guard lock(mutex_);
    loop_ = {body, call, tiles};
    next_.store(0, std::memory_order_relaxed);
    ++round_;
  }
  wake_.notify_all();
  take_tiles({body, call, tiles});
  yield_until([this] { return inside_.load(std::memory_order_relaxed) == 0; });
  std::unique_lock lock(mutex_);
  loop_ = {};  // a worker that wakes late finds nothing to do
  done_.wait(lock, [this] { return inside_ == 0; });
}

void ThreadPool::take_tiles(const Loop& loop) {
  for (auto tile = next_.fetch_add(1); tile < loop.tiles; tile = next_.fetch_add(1)) loop.call(loop.body, tile);
}

void ThreadPool::work() {
  std::uint64_t seen = 0;
  while (true) {
    yield_until([&] { return round_.load(std::memory_order_relaxed) != seen; });
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    if (loop_.body == nullptr) continue;
    const auto loop = loop_;  // the caller clears it when the tiles are taken, not when they are done
    ++inside_;
    lock.unlock();
    take_tiles(loop);
    lock.lock();
    if (--inside_ == 0) done_.notify_one();
  }
}

}  // namespace spillway::execute
