// A few threads that take the tiles of one loop, together with the thread that calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace spillway::execute {

/// One loop at a time: who calls while one is under way does its own alone. Allocates nothing after construction.
class ThreadPool {
 public:
  explicit ThreadPool(unsigned threads);  ///< the caller included; at least 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Calls body(tile) once for every tile in [0, tiles), in any order and on any thread; returns when all are done.
  /// `body` must not throw.
  template <class Body>
  void run(std::size_t tiles, const Body& body) {
    run_erased(tiles, &body, [](const void* self, std::size_t tile) { (*static_cast<const Body*>(self))(tile); });
  }

  using Call = void (*)(const void* body, std::size_t tile);
  void run_erased(std::size_t tiles, const void* body, Call call);

 private:
  void stop();
  void work();
  void share(std::size_t tiles, const void* body, Call call);
  struct Loop {
    const void* body = nullptr;  ///< null between loops
    Call call = nullptr;
    std::size_t tiles = 0;
  };
  void take_tiles(const Loop& loop);

  std::vector<std::thread> workers_;
  std::mutex one_;    ///< of callers, whose loop is shared
  std::mutex mutex_;  ///< guards what follows up to `next_`
  std::condition_variable wake_, done_;
  std::atomic<std::uint64_t> round_{0};  ///< loops started; changes under the mutex
  std::atomic<std::size_t> inside_{0};   ///< workers in the current loop; changes under the mutex
  bool stop_ = false;
  Loop loop_;
  std::atomic<std::size_t> next_{0};
};

}  // namespace spillway::execute
