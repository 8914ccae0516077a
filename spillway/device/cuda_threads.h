// What one thread of each kernel does, but of updates (cuda_update_threads.h): shared by the kernels (cuda_kernels.cu)
// and who launches them (cuda.cc). The fake driver of the tests runs the kernels on the host, so that what a GPU will
// compute is compared with the references where there is none.
//
// `Grid`: threads are counted over the whole launch. A warp sums in 32 lanes, as the references do (kernels/lanes.h);
// what joins lanes is the kernel's.
#pragma once

#include <cmath>
#include <cstdint>

#include "spillway/base/on_device.h"
#include "spillway/device/work.h"
#include "spillway/kernels/bf16.h"
#include "spillway/kernels/fp16.h"
#include "spillway/kernels/lanes.h"
#include "spillway/kernels/packed.h"
#include "spillway/kernels/softmax.h"
#include "spillway/kernels/softmax_exp.h"
#include "spillway/kernels/split.h"

namespace spillway::device::threads {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kBlock = 256;  ///< threads of a block, of every kernel
static_assert(kernels::kNormLanes == kWarp && kernels::kSoftmaxLanes == 2 * kWarp);

struct Bf16 {
  std::uint16_t bits;
};

SPILLWAY_ON_DEVICE inline float load(Bf16 value) {
  return kernels::widen(value.bits);
}
SPILLWAY_ON_DEVICE inline float load(kernels::Fp16 value) {
  return kernels::widen_fp16(value.bits);
}
SPILLWAY_ON_DEVICE inline float load(float value) {
  return value;
}
SPILLWAY_ON_DEVICE inline void store(float value, Bf16& out) {
  out.bits = kernels::round_bf16(value);
}
SPILLWAY_ON_DEVICE inline void store(float value, kernels::Fp16& out) {
  out.bits = kernels::round_fp16(value);
}
SPILLWAY_ON_DEVICE inline void store(float value, float& out) {
  out = kernels::quiet(value);
}

template <class T>
SPILLWAY_ON_DEVICE const T* as(const std::byte* at) {
  return reinterpret_cast<const T*>(at);
}
template <class T>
SPILLWAY_ON_DEVICE T* as(std::byte* at) {
  return reinterpret_cast<T*>(at);
}

struct Grid {
  std::uint64_t thread = 0, threads = 1;
};

template <class T>
SPILLWAY_ON_DEVICE void sum(const Sum& a, Grid grid) {
  const T* const values = as<T>(a.values);
  if (a.first) {
    for (auto i = grid.thread; i < a.n; i += grid.threads) a.sum[i] = load(values[i]);
  } else {
    for (auto i = grid.thread; i < a.n; i += grid.threads) a.sum[i] = kernels::quiet(a.sum[i] + load(values[i]));
  }
}

/// Number `i` of the values, in fp32.
SPILLWAY_ON_DEVICE inline float value_of(const Convert& a, std::uint64_t i) {
  switch (a.from) {
    case kernels::Encoding::bf16:
      return load(as<Bf16>(a.values)[i]);
    case kernels::Encoding::fp16:
      return load(as<kernels::Fp16>(a.values)[i]);
    case kernels::Encoding::fp32:
      return as<float>(a.values)[i];
    case kernels::Encoding::nf4:
    case kernels::Encoding::int8:
      break;
  }
  return kernels::scalar::packed_value(a.from, a.values, a.n, i);
}

SPILLWAY_ON_DEVICE inline kernels::Encoding encoding_of(Bf16) {
  return kernels::Encoding::bf16;
}
SPILLWAY_ON_DEVICE inline kernels::Encoding encoding_of(kernels::Fp16) {
  return kernels::Encoding::fp16;
}
SPILLWAY_ON_DEVICE inline kernels::Encoding encoding_of(float) {
  return kernels::Encoding::fp32;
}

SPILLWAY_ON_DEVICE inline void store_value(float value, float& out) {
  out = value;
}
template <class T>
SPILLWAY_ON_DEVICE void store_value(float value, T& out) {
  store(value, out);
}

template <class T>
SPILLWAY_ON_DEVICE void convert(const Convert& a, Grid grid) {
  T* const out = as<T>(a.out);
  if (a.from == encoding_of(T{})) {
    for (auto i = grid.thread; i < a.n; i += grid.threads) out[i] = as<T>(a.values)[i];
  } else {
    for (auto i = grid.thread; i < a.n; i += grid.threads) store_value(value_of(a, i), out[i]);
  }
}

/// Loads of a lane in flight. A tensor of a layer has few tiles, so latency bounds a warp and not bandwidth.
inline constexpr unsigned kAtOnce = 32;

/// A lane's part of the squares of elements [first, end): every 32nd. `take(i, T)` sees each element.
template <class T, class Take>
SPILLWAY_ON_DEVICE double lane_squares(const T* from, std::uint64_t first, std::uint64_t end, unsigned lane,
                                       const Take& take) {
  double out = 0;
  auto i = first + lane;
  for (; i + (kAtOnce - 1) * kWarp < end; i += kAtOnce * kWarp) {
    T values[kAtOnce];
    for (unsigned k = 0; k < kAtOnce; ++k) values[k] = from[i + k * kWarp];
    for (unsigned k = 0; k < kAtOnce; ++k) {
      const double value = take(i + k * kWarp, values[k]);
      out += value * value;
    }
  }
  for (; i < end; i += kWarp) {
    const double value = take(i, from[i]);
    out += value * value;
  }
  return out;
}

/// Rounds a lane's part of tile number `tile`, and returns its sum of squares.
template <class T>
SPILLWAY_ON_DEVICE double round(const Round& a, std::uint64_t tile, unsigned lane) {
  const auto first = tile * kSquaresTile;
  const auto end = first + kSquaresTile < a.n ? first + kSquaresTile : a.n;
  T* const out = as<T>(a.out);
  if (a.sums != nullptr) {
    return lane_squares(a.sums, first, end, lane, [out](std::uint64_t i, float value) {
      T rounded;
      store(value, rounded);
      out[i] = rounded;
      return load(rounded);
    });
  }
  const bool there = a.values == a.out;
  return lane_squares(as<T>(a.values), first, end, lane, [out, there](std::uint64_t i, T value) {
    if (!there) out[i] = value;
    return load(value);
  });
}

template <class T>
SPILLWAY_ON_DEVICE double squares(const Squares& a, std::uint64_t part, unsigned lane) {
  const auto it = a.parts[part];
  return lane_squares(as<T>(a.values), it.first, it.first + it.count, lane,
                      [](std::uint64_t, T value) { return load(value); });
}

template <class T>
SPILLWAY_ON_DEVICE void gather(const Gather& a, Grid grid) {
  const T* const values = as<T>(a.values);
  for (auto i = grid.thread; i < a.count * a.columns; i += grid.threads) {
    const auto row = i / a.columns;
    const auto from = static_cast<std::uint64_t>(a.rows[row] - a.base) * a.columns + (i - row * a.columns);
    a.out[i] = load(values[from]);
  }
}

/// The larger of the old maximum and what a lane sees of a token's logits; NaN left out.
template <class T>
SPILLWAY_ON_DEVICE float highest(const LossStats& a, std::uint64_t token, unsigned lane) {
  const T* const logits = as<T>(a.logits.values) + token * a.logits.stride;
  float out = a.maximum[token];
  for (std::uint64_t i = lane; i < a.logits.rows; i += kWarp) {
    const float value = load(logits[i]);
    out = value > out ? value : out;
  }
  return out;
}

/// Exponentials of lanes `lane` and `lane` + 32 of 64, the second onto the first.
template <class T>
SPILLWAY_ON_DEVICE float lane_exponentials(const LossStats& a, std::uint64_t token, unsigned lane, float shift) {
  const T* const logits = as<T>(a.logits.values) + token * a.logits.stride;
  float low = 0, high = 0;
  for (std::uint64_t i = lane; i < a.logits.rows; i += 2 * kWarp) {
    low += kernels::scalar::exp(load(logits[i]) - shift);
    if (i + kWarp < a.logits.rows) high += kernels::scalar::exp(load(logits[i + kWarp]) - shift);
  }
  return low + high;
}

/// One thread of the token's.
template <class T>
SPILLWAY_ON_DEVICE void end_stats(const LossStats& a, std::uint64_t token, kernels::SoftmaxFold fold, float sum) {
  a.maximum[token] = fold.maximum;
  a.sum[token] = fold.sum(a.sum[token], sum);
  const auto label = static_cast<std::uint64_t>(a.logits.labels[token]) - a.logits.first_row;
  if (label < a.logits.rows) a.gold[token] = load(as<T>(a.logits.values)[token * a.logits.stride + label]);
}

template <class T>
SPILLWAY_ON_DEVICE void loss_gradient(const LossGradient& a, std::uint64_t token, Grid columns) {
  T* const logits = as<T>(a.logits.values) + token * a.logits.stride;
  const auto label = static_cast<std::uint64_t>(a.logits.labels[token]) - a.logits.first_row;
  const float maximum = a.maximum[token], log_sum = a.log_sum[token];
  for (auto i = columns.thread; i < a.logits.rows; i += columns.threads) {
    const float probability = kernels::scalar::exp((load(logits[i]) - maximum) - log_sum);
    store((i == label ? probability - 1.0f : probability) * a.scale, logits[i]);
  }
}

/// Neighbouring threads take neighbouring tokens of one column, whose places are neighbours.
template <class T>
SPILLWAY_ON_DEVICE void compress(const Compress& a, Grid grid) {
  const auto& r = a.by;
  for (auto i = grid.thread; i < r.columns * a.tokens; i += grid.threads) {
    const auto column = i / a.tokens, token = i - column * a.tokens;
    const auto group = column / r.nonzeros, end = r.first(group + 1);
    const float* const values = r.values + (column - group * r.nonzeros) * r.stride();
    const T* const in = as<T>(a.in) + token * a.in_stride;
    float sum = 0;
    for (auto row = r.first(group); row < end; ++row) sum = std::fma(load(in[row]), values[row], sum);
    store(sum, as<T>(a.out)[column * a.out_stride + token]);
  }
}

/// Element [row, column] of delta * Q^T, one of the rows that the group of `row` shares.
SPILLWAY_ON_DEVICE inline float spread(const kernels::Expansion& e, std::uint64_t row, std::uint64_t column) {
  const auto& q = e.q;
  const float* const line = e.delta + row * q.columns + q.group_of(column) * q.nonzeros;
  float out = 0;
  for (std::uint64_t t = 0; t < q.nonzeros; ++t) out = std::fma(q.values[t * q.stride() + column], line[t], out);
  return out;
}

SPILLWAY_ON_DEVICE inline void apply(const Apply& a, Grid grid) {
  const auto& p = a.expansion.p;
  for (auto i = grid.thread; i < a.n; i += grid.threads) {
    const auto row = (a.first + i) / a.expansion.q.rows, column = a.first + i - row * a.expansion.q.rows;
    const auto first = p.group_of(row) * p.nonzeros;
    float change = 0;
    for (std::uint64_t s = 0; s < p.nonzeros; ++s) {
      change = std::fma(p.values[s * p.stride() + row], spread(a.expansion, first + s, column), change);
    }
    const float master = kernels::as_float(kernels::scalar::join_bits(a.weight[i], a.remainder[i]));
    const float next = kernels::quiet(std::fma(master, a.keep, change));
    kernels::scalar::split_bits(kernels::as_bits(next), a.weight[i], a.remainder[i]);
  }
}

}  // namespace spillway::device::threads
