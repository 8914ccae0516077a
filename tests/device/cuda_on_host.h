// CUDA's own words for the host's compiler, as far as cuda_kernels.cu has them, so that the kernels themselves run
// where no GPU is. To be included before that file.
//
// A launch runs its blocks, and the warps of a block, one after the other on the calling thread. Lane 0 of a warp runs
// first, on a stack of its own. Where it ends without waiting, so must the other lanes, and they simply follow it. At a
// shuffle it waits until all lanes have come there, at a barrier until all warps have. From one barrier to the next
// warps run in the other direction, so that either neighbour of a missing one is seen. Lanes of which some end and
// others wait are an error of the kernel, which ends the process.
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
#define __shared__ static thread_local

namespace spillway::device::fake {

struct Dimensions {
  unsigned x = 0;
};

inline constexpr unsigned kLanes = 32, kMostWarps = 8;

inline void must(bool holds, const char* otherwise) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", otherwise);
  std::abort();
}

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

/// What a lane waits for.
enum class Wait : std::uint8_t { nothing, shuffle, barrier };

class Warp {
 public:
  /// Begins, or goes on from a barrier: until all lanes have ended or, true, wait at one. `set_thread(i)` says which
  /// thread of its block runs from here on.
  template <class SetThread>
  bool run(unsigned first, const std::function<void()>& kernel, const SetThread& set_thread) {
    const bool begins = !waits_;
    kernel_ = &kernel;
    auto wait = resume(0, first, set_thread);
    if (begins && wait == Wait::nothing) {
      for (unsigned lane = 1; lane < kLanes; ++lane) {
        set_thread(first + lane);
        alone_ = true;
        kernel();
        alone_ = false;
      }
      return false;
    }
    resume_others(wait, first, set_thread);
    while (wait == Wait::shuffle) {
      wait = resume(0, first, set_thread);
      resume_others(wait, first, set_thread);
    }
    return waits_ = wait == Wait::barrier;
  }

  /// The value of lane `from`, at the same shuffle; of a lane that is none, one's own.
  template <class T>
  T shuffled(T value, unsigned from) {
    static_assert(sizeof(T) <= sizeof(Slot));
    const auto lane = now_;
    auto& slots = slots_[turns_[lane]++ % 2];  // those of the shuffle before are still read
    std::memcpy(&slots[lane], &value, sizeof value);
    wait(Wait::shuffle);
    std::memcpy(&value, &slots[from < kLanes ? from : lane], sizeof value);
    return value;
  }

  void wait(Wait what) {
    must(!alone_, kParted);
    wait_ = what;
    home_.go_on(stacks_[now_]);
  }

 private:
  using Slot = std::uint64_t;
  static constexpr const char* kParted = "lanes of one warp part at a shuffle or barrier";

  template <class SetThread>
  Wait resume(unsigned lane, unsigned first, const SetThread& set_thread) {
    set_thread(first + lane);
    now_ = lane;
    wait_ = Wait::nothing;
    if (!stacks_[lane].begun()) stacks_[lane].begin(&Warp::lane_entry);
    stacks_[lane].go_on(home_);
    return wait_;
  }
  template <class SetThread>
  void resume_others(Wait wait, unsigned first, const SetThread& set_thread) {
    for (unsigned lane = 1; lane < kLanes; ++lane) must(resume(lane, first, set_thread) == wait, kParted);
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

  std::array<Stack, kLanes> stacks_;
  Stack home_;
  std::array<unsigned, kLanes> turns_{};  ///< shuffles of the lane in this kernel
  std::array<std::array<Slot, kLanes>, 2> slots_{};
  const std::function<void()>* kernel_ = nullptr;
  unsigned now_ = 0;  ///< the lane that runs
  Wait wait_ = Wait::nothing;
  bool waits_ = false;  ///< at a barrier
  bool alone_ = false;  ///< a lane runs on the thread's own stack and cannot wait
};

/// The block that this thread runs.
struct Block {
  std::array<Warp, kMostWarps> warps;
  Warp* now = nullptr;  ///< that runs
};
inline thread_local Block block;

inline void Warp::lane_entry() {
  block.now->run_lane();
}

}  // namespace spillway::device::fake

inline thread_local spillway::device::fake::Dimensions threadIdx, blockIdx, blockDim, gridDim;

template <class T>
T __shfl_down_sync(unsigned, T value, unsigned lanes) {
  return spillway::device::fake::block.now->shuffled(value, threadIdx.x % spillway::device::fake::kLanes + lanes);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned lanes) {
  return spillway::device::fake::block.now->shuffled(value, (threadIdx.x % spillway::device::fake::kLanes) ^ lanes);
}

inline void __syncthreads() {
  spillway::device::fake::block.now->wait(spillway::device::fake::Wait::barrier);
}

namespace spillway::device::fake {

/// All warps, until each has ended or, true, each waits at a barrier.
inline bool run_warps(unsigned warps, bool upwards, const std::function<void()>& kernel) {
  unsigned waiting = 0;
  for (unsigned i = 0; i < warps; ++i) {
    const auto number = upwards ? i : warps - 1 - i;
    block.now = &block.warps[number];
    waiting += block.now->run(number * kLanes, kernel, [](unsigned thread) { threadIdx.x = thread; }) ? 1 : 0;
  }
  must(waiting == 0 || waiting == warps, "warps of one block part at a barrier");
  return waiting > 0;
}

/// A launch of `blocks` blocks of `threads` threads; `kernel` is called once for each thread.
inline void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  must(threads % kLanes == 0 && threads <= kMostWarps * kLanes, "a block has whole warps, and at most 8");
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (bool upwards = true; run_warps(threads / kLanes, upwards, kernel); upwards = !upwards) {
    }
  }
}

}  // namespace spillway::device::fake
