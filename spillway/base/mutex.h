// A mutex, its lock and a condition, with annotations by which Clang verifies that what a mutex guards is used under
// its lock alone (`make check-thread-safety`). Other compilers ignore them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define SPILLWAY_THREAD_SAFETY(annotation) __attribute__((annotation))
#else
#define SPILLWAY_THREAD_SAFETY(annotation)
#endif
/// The member is read and written under that mutex alone.
#define SPILLWAY_GUARDED_BY(mutex) SPILLWAY_THREAD_SAFETY(guarded_by(mutex))
/// The caller of the function has that mutex, before and after.
#define SPILLWAY_REQUIRES(...) SPILLWAY_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define SPILLWAY_ACQUIRES(...) SPILLWAY_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define SPILLWAY_RELEASES(...) SPILLWAY_THREAD_SAFETY(release_capability(__VA_ARGS__))
/// The function does what the annotations cannot say; a comment says why it is right.
#define SPILLWAY_UNVERIFIED SPILLWAY_THREAD_SAFETY(no_thread_safety_analysis)

namespace spillway {

class SPILLWAY_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  void lock() SPILLWAY_ACQUIRES() { mutex_.lock(); }
  void unlock() SPILLWAY_RELEASES() { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

/// Has a mutex as long as it lives, but for between unlock() and lock().
class SPILLWAY_THREAD_SAFETY(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SPILLWAY_ACQUIRES(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() SPILLWAY_RELEASES() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() SPILLWAY_ACQUIRES() { lock_.lock(); }
  void unlock() SPILLWAY_RELEASES() { lock_.unlock(); }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

/// Wakes threads that wait for what a mutex guards. A wait may end without a notification: call it in a loop.
class Condition {
 public:
  void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  void wait_for(MutexLock& lock, std::chrono::milliseconds time) { condition_.wait_for(lock.lock_, time); }
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace spillway
