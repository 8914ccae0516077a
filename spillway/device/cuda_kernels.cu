// The kernels of the `cuda` device: which threads there are, and how lanes are joined. What a thread does is in
// cuda_threads.h. Compiled to machine code for each generation (cmake/SpillwayCuda.cmake), with multiplications and
// additions kept apart: they are fused where the source says so, as on the host.
#include "spillway/device/cuda_threads.h"
#include "spillway/device/fused_threads.h"

namespace {

using namespace spillway::device;
using spillway::kernels::Fp16;
using threads::Bf16;

__device__ threads::Grid whole_grid() {
  return {std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x, std::uint64_t{gridDim.x} * blockDim.x};
}

/// The warp's number, and how many there are.
__device__ threads::Grid warps() {
  const auto grid = whole_grid();
  return {grid.thread / threads::kWarp, grid.threads / threads::kWarp};
}

__device__ unsigned lane() {
  return threadIdx.x % threads::kWarp;
}

/// The sum of all lanes, in lane 0, in the order of kernels::tree_sum.
template <class T>
__device__ T tree_sum(T value) {
  for (unsigned half = threads::kWarp / 2; half > 0; half /= 2) value += __shfl_down_sync(~0u, value, half);
  return value;
}

/// The same in all lanes: each adds the same pairs, whichever comes first.
__device__ float sum_in_all(float value) {
  for (unsigned half = threads::kWarp / 2; half > 0; half /= 2) value += __shfl_xor_sync(~0u, value, half);
  return value;
}

/// The sum of squares of `count` elements of a tile, in thread 0. `turn`: which of the two stages is next.
template <class T, class Tile>
__device__ double sum_squares(const Tile& tile, std::uint64_t count, threads::Stage<T> (&stages)[2], unsigned& turn) {
  threads::OfStage<Tile> next;
  next.fetch(tile, 0, count, threadIdx.x);
  double sum = 0;
  for (std::uint64_t at = 0; at < count; at += threads::kStage, turn ^= 1) {
    next.put(tile, at, count, threadIdx.x, stages[turn]);
    next.fetch(tile, at + threads::kStage, count, threadIdx.x);
    __syncthreads();  // no thread fills the other stage before the first warp has added it
    if (threadIdx.x < threads::kWarp) sum = threads::lane_squares(stages[turn], count - at, lane(), sum);
  }
  return threadIdx.x < threads::kWarp ? spillway::kernels::quiet(tree_sum(sum)) : 0;
}

template <class T>
__device__ void round_tiles(const Round& a) {
  __shared__ threads::Stage<T> stages[2];
  unsigned turn = 0;
  for (std::uint64_t tile = blockIdx.x; tile < square_tiles(a.n); tile += gridDim.x) {
    const auto first = tile * kSquaresTile, count = threads::count_of_tile(a.n, tile);
    const double sum = a.sums != nullptr ? sum_squares(threads::rounded_tile<T>(a, first), count, stages, turn)
                                         : sum_squares(threads::copied_tile<T>(a, first), count, stages, turn);
    if (threadIdx.x == 0 && a.squares != nullptr) a.squares[tile] = sum;
  }
}

template <class T>
__device__ void square_parts(const Squares& a) {
  __shared__ threads::Stage<T> stages[2];
  unsigned turn = 0;
  for (std::uint64_t part = blockIdx.x; part < a.count; part += gridDim.x) {
    const auto it = a.parts[part];
    const double sum = sum_squares(threads::copied_tile<T>(a, it), it.count, stages, turn);
    if (threadIdx.x == 0) a.squares[part] = sum;
  }
}

template <class T>
__device__ void stats_of_tokens(const LossStats& a) {
  const auto warp = warps();
  for (auto token = warp.thread; token < a.logits.tokens; token += warp.threads) {
    const float before = a.maximum[token];
    float highest = threads::highest<T>(a, token, lane());
    for (unsigned half = threads::kWarp / 2; half > 0; half /= 2) {
      const float other = __shfl_xor_sync(~0u, highest, half);
      highest = other > highest ? other : highest;
    }
    const spillway::kernels::SoftmaxFold fold(before, highest);
    const float sum = tree_sum(threads::lane_exponentials<T>(a, token, lane(), fold.shift));
    if (lane() == 0) threads::end_stats<T>(a, token, fold, sum);
  }
}

template <class T>
__device__ void normalise_rows(const RmsNormForward& a) {
  const auto warp = warps();
  for (auto row = warp.thread; row < a.norm.rows; row += warp.threads) {
    threads::normalise<T>(a, row, lane(), sum_in_all(threads::lane_square_sum<T>(a, row, lane())));
  }
}

template <class T>
__device__ void scales_of_rows(const RmsNormScales& a) {
  const auto warp = warps();
  for (auto row = warp.thread; row < a.norm.rows; row += warp.threads) {
    const auto part = threads::lane_row_sums<T>(a, row, lane());
    const threads::RowSums sums{tree_sum(part.squares), tree_sum(part.products)};
    if (lane() == 0) threads::end_scales(a, row, sums);
  }
}

template <class T>
__device__ void sum_of_tiles(const RmsNormWeight& a) {
  const auto warp = warps();
  for (auto column = warp.thread; column < a.columns; column += warp.threads) {
    const float sum = tree_sum(threads::lane_tile_sum(a, column, lane()));
    if (lane() == 0) threads::store(sum, threads::as<T>(a.out)[column]);
  }
}

}  // namespace

#define KERNEL extern "C" __global__ void __launch_bounds__(threads::kBlock)
#define FOR_EACH_TYPE(name, Arguments, body)   \
  KERNEL spillway_##name##_bf16(Arguments a) { \
    body(Bf16);                                \
  }                                            \
  KERNEL spillway_##name##_fp16(Arguments a) { \
    body(Fp16);                                \
  }                                            \
  KERNEL spillway_##name##_fp32(Arguments a) { \
    body(float);                               \
  }

#define SUM(T) threads::sum<T>(a, whole_grid())
#define CONVERT(T) threads::convert<T>(a, whole_grid())
#define ROUND(T) round_tiles<T>(a)
#define SQUARES(T) square_parts<T>(a)
#define GATHER(T) threads::gather<T>(a, whole_grid())
#define INDEX_SELECT(T) threads::index_select<T>(a, whole_grid())
#define COMPRESS(T) threads::compress<T>(a, whole_grid())
#define LOSS_STATS(T) stats_of_tokens<T>(a)
#define LOSS_GRADIENT(T) threads::loss_gradient<T>(a, whole_grid())
#define RMS_NORM(T) normalise_rows<T>(a)
#define RMS_NORM_SCALES(T) scales_of_rows<T>(a)
#define RMS_NORM_BACKWARD(T) threads::differentiate_norms<T>(a, whole_grid())
#define RMS_NORM_WEIGHT(T) sum_of_tiles<T>(a)
#define SWIGLU(T) threads::swiglu<T>(a, whole_grid())
#define SWIGLU_BACKWARD(T) threads::swiglu_backward<T>(a, whole_grid())
#define ROTARY(T) threads::rotate<T>(a, whole_grid())

FOR_EACH_TYPE(sum, Sum, SUM)
FOR_EACH_TYPE(convert, Convert, CONVERT)
FOR_EACH_TYPE(round, Round, ROUND)
FOR_EACH_TYPE(squares, Squares, SQUARES)
FOR_EACH_TYPE(gather, Gather, GATHER)
FOR_EACH_TYPE(index_select, IndexSelect, INDEX_SELECT)
FOR_EACH_TYPE(compress, Compress, COMPRESS)
FOR_EACH_TYPE(loss_stats, LossStats, LOSS_STATS)
FOR_EACH_TYPE(loss_gradient, LossGradient, LOSS_GRADIENT)
FOR_EACH_TYPE(rms_norm, RmsNormForward, RMS_NORM)
FOR_EACH_TYPE(rms_norm_scales, RmsNormScales, RMS_NORM_SCALES)
FOR_EACH_TYPE(rms_norm_backward, RmsNormBackward, RMS_NORM_BACKWARD)
FOR_EACH_TYPE(rms_norm_weight, RmsNormWeight, RMS_NORM_WEIGHT)
FOR_EACH_TYPE(swiglu, SwiGlu, SWIGLU)
FOR_EACH_TYPE(swiglu_backward, SwiGluBackward, SWIGLU_BACKWARD)
FOR_EACH_TYPE(rotary, Rotary, ROTARY)

KERNEL spillway_apply(Apply a) {
  threads::apply(a, whole_grid());
}
KERNEL spillway_sample(Sample a) {
  if (whole_grid().thread == 0) take_sample(a);
}

#include "spillway/device/cuda_updates.cuh"

KERNEL spillway_apply_rounded(threads::RoundedApply a) {
  threads::apply_rounded(a, whole_grid(), kAesBox);
}
