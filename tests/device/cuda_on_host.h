// CUDA's own words for the host's compiler, as far as cuda_kernels.cu has them, so that the kernels themselves run
// where no GPU is. To be included before that file.
//
// A launch runs its warps one after the other on the calling thread. Lane 0 of a warp runs first, on a stack of its
// own. Where it ends without a shuffle, so must the other lanes, and they simply follow it. At a shuffle it waits until
// all lanes have come there. Lanes of which some end and others shuffle are an error of the kernel, which ends the
// process.
#pragma once

#include <ucontext.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#define __global__
#define __device__
#define __launch_bounds__(threads)

namespace spillway::device::fake {

struct Dimensions {
  unsigned x = 0;
};

inline constexpr unsigned kLanes = 32;

/// What several stacks of one thread take turns on: where each goes on.
class Stack {
 public:
  /// The calling thread's own.
  Stack() = default;
  ~Stack() {
#ifdef __SANITIZE_THREAD__
    if (begun()) __tsan_destroy_fiber(fiber_);
#endif
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  /// Makes it one that begins with `entry`, which must not return.
  void begin(void (*entry)()) {
    memory_ = std::make_unique_for_overwrite<std::byte[]>(kBytes);
    ::getcontext(&context_);
    context_.uc_stack.ss_sp = memory_.get();
    context_.uc_stack.ss_size = kBytes;
    ::makecontext(&context_, entry, 0);
#ifdef __SANITIZE_THREAD__
    fiber_ = __tsan_create_fiber(0);
#endif
  }
  [[nodiscard]] bool begun() const {
    return memory_ != nullptr;
  }

  /// Leaves the stack `from`, which is the one that runs, until somebody comes back to it.
  void go_on(Stack& from) {
#ifdef __SANITIZE_THREAD__
    if (from.fiber_ == nullptr) from.fiber_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber_, 0);
#endif
    ::swapcontext(&from.context_, &context_);
  }

 private:
  static constexpr std::size_t kBytes = 128 << 10;  // frames of a sanitizer are large

  ucontext_t context_{};
  std::unique_ptr<std::byte[]> memory_;
#ifdef __SANITIZE_THREAD__
  void* fiber_ = nullptr;
#endif
};

/// The warp that this thread runs.
class Warp {
 public:
  /// `set_thread(i)` says which thread of its block runs from here on.
  template <class SetThread>
  void run(unsigned first, const std::function<void()>& kernel, const SetThread& set_thread) {
    kernel_ = &kernel;
    if (!resume(0, first, set_thread)) {
      for (unsigned lane = 1; lane < kLanes; ++lane) {
        set_thread(first + lane);
        alone_ = true;
        kernel();
        alone_ = false;
      }
      return;
    }
    for (unsigned lane = 1; lane < kLanes; ++lane) must(resume(lane, first, set_thread));
    for (bool waiting = true; waiting;) {
      waiting = resume(0, first, set_thread);
      for (unsigned lane = 1; lane < kLanes; ++lane) must(resume(lane, first, set_thread) == waiting);
    }
  }

  /// The value of lane `from`, at the same shuffle; of a lane that is none, one's own.
  template <class T>
  T shuffled(T value, unsigned from) {
    static_assert(sizeof(T) <= sizeof(Slot));
    must(!alone_);
    const auto lane = now_;
    auto& slots = slots_[turns_[lane]++ % 2];  // those of the shuffle before are still read
    std::memcpy(&slots[lane], &value, sizeof value);
    waiting_ = true;
    home_.go_on(stacks_[lane]);
    std::memcpy(&value, &slots[from < kLanes ? from : lane], sizeof value);
    return value;
  }

 private:
  using Slot = std::uint64_t;

  /// Whether the lane waits at a shuffle; false: it has ended.
  template <class SetThread>
  bool resume(unsigned lane, unsigned first, const SetThread& set_thread) {
    set_thread(first + lane);
    now_ = lane;
    waiting_ = false;
    if (!stacks_[lane].begun()) stacks_[lane].begin(&Warp::lane_entry);
    stacks_[lane].go_on(home_);
    return waiting_;
  }

  /// A lane's stack runs one kernel after the other.
  static void lane_entry();
  [[noreturn]] void run_lane() {
    for (;;) {
      const auto lane = now_;
      turns_[lane] = 0;
      (*kernel_)();
      home_.go_on(stacks_[lane]);
    }
  }

  static void must(bool holds) {
    if (holds) return;
    std::fprintf(stderr, "lanes of one warp part at a shuffle\n");
    std::abort();
  }

  std::array<Stack, kLanes> stacks_;
  Stack home_;
  std::array<unsigned, kLanes> turns_{};  ///< shuffles of the lane in this kernel
  std::array<std::array<Slot, kLanes>, 2> slots_{};
  const std::function<void()>* kernel_ = nullptr;
  unsigned now_ = 0;  ///< the lane that runs
  bool waiting_ = false;
  bool alone_ = false;  ///< it runs on the thread's own stack and cannot wait
};

inline thread_local Warp warp;

inline void Warp::lane_entry() {
  warp.run_lane();
}

}  // namespace spillway::device::fake

inline thread_local spillway::device::fake::Dimensions threadIdx, blockIdx, blockDim, gridDim;

template <class T>
T __shfl_down_sync(unsigned, T value, unsigned lanes) {
  return spillway::device::fake::warp.shuffled(value, threadIdx.x % spillway::device::fake::kLanes + lanes);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned lanes) {
  return spillway::device::fake::warp.shuffled(value, (threadIdx.x % spillway::device::fake::kLanes) ^ lanes);
}

namespace spillway::device::fake {

/// A launch of `blocks` blocks of `threads` threads; `kernel` is called once for each thread.
inline void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (unsigned first = 0; first < threads; first += kLanes) {
      warp.run(first, kernel, [](unsigned thread) { threadIdx.x = thread; });
    }
  }
}

}  // namespace spillway::device::fake
