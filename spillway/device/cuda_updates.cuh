// The kernels of updates: which threads there are, and how the lanes of a block of codes are joined. What a thread does
// is in cuda_update_threads.h. A part of cuda_kernels.cu, whose grids and names of types it has.
#include "spillway/device/cuda_update_threads.h"

namespace {

/// In memory, for threads look up different places of it.
__device__ const spillway::kernels::AesBox kAesBox = spillway::kernels::make_aes_box();

template <class T>
__device__ void update_bf16_groups(const threads::UpdateArguments& a) {
  const auto groups = threads::groups_of(a.span);
  const bool aligned = threads::is_aligned_bf16<T>(a.span);
  const auto warp = warps();
  for (auto at = warp.thread; at * threads::kDrawnFor < groups; at += warp.threads) {
    const auto number = at * threads::kDrawnFor + lane();
    const auto numbers = threads::numbers_of_group(a, number, kAesBox);
    const auto next = __shfl_down_sync(~0u, numbers.columns[0], 1);
    if (lane() < threads::kDrawnFor && number < groups) threads::update_bf16<T>(a, number, aligned, numbers, next);
  }
}

/// The largest of all lanes, in each of them.
__device__ std::uint32_t largest_of_warp(std::uint32_t value) {
  for (unsigned half = threads::kWarp / 2; half > 0; half /= 2) {
    const auto other = __shfl_xor_sync(~0u, value, half);
    value = other > value ? other : value;
  }
  return value;
}

template <class T>
__device__ void update_int8_blocks(const threads::UpdateArguments& a) {
  using spillway::kernels::kQuantBlock, spillway::kernels::Moment;
  const bool aligned = threads::is_aligned_int8<T>(a.span);
  const auto warp = warps();
  for (auto block = warp.thread; block * kQuantBlock < a.span.n; block += warp.threads) {
    const threads::CodedEight<T> eight(a, block, lane(), aligned);
    const auto first = largest_of_warp(eight.largest(Moment::first));
    const auto second = largest_of_warp(eight.largest(Moment::second));
    eight.store(a, block, lane(), first, second, kAesBox);
  }
}

}  // namespace

#define ADAMW_EXACT(T) threads::update_exact<T>(a, whole_grid())
#define ADAMW_BF16(T) update_bf16_groups<T>(a)
#define ADAMW_INT8(T) update_int8_blocks<T>(a)

FOR_EACH_TYPE(adamw_exact, threads::UpdateArguments, ADAMW_EXACT)
FOR_EACH_TYPE(adamw_bf16, threads::UpdateArguments, ADAMW_BF16)
FOR_EACH_TYPE(adamw_int8, threads::UpdateArguments, ADAMW_INT8)

KERNEL spillway_adamw_delta_exact(threads::DeltaArguments a) {
  ADAMW_EXACT(threads::Delta);
}
KERNEL spillway_adamw_delta_bf16(threads::DeltaArguments a) {
  ADAMW_BF16(threads::Delta);
}
KERNEL spillway_adamw_delta_int8(threads::DeltaArguments a) {
  ADAMW_INT8(threads::Delta);
}
