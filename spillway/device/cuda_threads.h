// What one thread of each kernel does, but of updates (cuda_update_threads.h): shared by the kernels (cuda_kernels.cu)
// and who launches them (cuda.cc). The fake driver of the tests runs the kernels on the host, so that what a GPU will
// compute is compared with the references where there is none.
//
// `Grid`: threads are counted over the whole launch. A warp sums in 32 lanes, as the references do (kernels/lanes.h);
// what joins lanes, and where threads of a block wait for each other, is the kernel's.
#pragma once

#include <cmath>
#include <cstdint>

#include "spillway/base/on_device.h"
#include "spillway/device/cuda_elements.h"
#include "spillway/device/work.h"
#include "spillway/kernels/packed.h"
#include "spillway/kernels/random.h"
#include "spillway/kernels/softmax.h"
#include "spillway/kernels/softmax_exp.h"

namespace spillway::device::threads {

/// A thread takes groups.
template <class T>
SPILLWAY_ON_DEVICE void sum(const Sum& a, Grid grid) {
  const T* const values = as<T>(a.values);
  const bool aligned = is_aligned(values) && is_aligned(a.sum);
  for (auto i = grid.thread * kGroup; i < a.n; i += grid.threads * kGroup) {
    const auto count = count_of(a.n - i);
    auto group = load_group(values + i, count, aligned);
    if (!a.first) {
      const auto before = load_group(a.sum + i, count, aligned);
      for (unsigned k = 0; k < kGroup; ++k) group.at[k] = kernels::quiet(before.at[k] + group.at[k]);
    }
    Packed<float> out{};
    for (unsigned k = 0; k < kGroup; ++k) out.put(k, group.at[k]);
    store_packed(out, a.sum + i, count, aligned);
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
    case kernels::Encoding::nf4_nested:
      break;
  }
  return kernels::scalar::packed_value(a.from, a.values, a.length(), i);
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
    for (auto i = grid.thread; i < a.n; i += grid.threads) out[i] = as<T>(a.values)[a.first + i];
  } else {
    for (auto i = grid.thread; i < a.n; i += grid.threads) store_value(value_of(a, a.first + i), out[i]);
  }
}

// ---- squares, a block a tile
//
// All threads of a block load, round and store a tile in stages, through memory that the block shares; of each stage
// one warp adds the squares in the order of lanes, while the others load the next.

inline constexpr unsigned kStageGroups = 2;                         ///< of each thread
inline constexpr unsigned kStage = kStageGroups * kBlock * kGroup;  ///< elements

/// Elements of a stage in order, as they lie in memory.
template <class T>
struct Stage {
  Packed<T> groups[kStage / kGroup];
};

// What is done with a group of a tile, `at` elements behind its begin: `fetch` loads, `put` writes and returns what the
// squares are of.

/// Sums that are rounded.
template <class T>
struct RoundedTile {
  using Fetched = Group;
  const float* sums;
  T* out;
  bool aligned;

  SPILLWAY_ON_DEVICE Group fetch(std::uint64_t at, unsigned count) const {
    return load_group(sums + at, count, aligned);
  }
  SPILLWAY_ON_DEVICE Packed<T> put(const Group& fetched, std::uint64_t at, unsigned count) const {
    const auto rounded = pack<T>(fetched);
    store_packed(rounded, out + at, count, aligned);
    return rounded;
  }
};

/// Values as they are; `out`: where they are written as well, or null.
template <class T>
struct CopiedTile {
  using Fetched = Packed<T>;
  const T* values;
  T* out;
  bool aligned;

  SPILLWAY_ON_DEVICE Packed<T> fetch(std::uint64_t at, unsigned count) const {
    return load_packed(values + at, count, aligned);
  }
  SPILLWAY_ON_DEVICE Packed<T> put(const Packed<T>& fetched, std::uint64_t at, unsigned count) const {
    if (out != nullptr) store_packed(fetched, out + at, count, aligned);
    return fetched;
  }
};

template <class T>
SPILLWAY_ON_DEVICE RoundedTile<T> rounded_tile(const Round& a, std::uint64_t first) {
  const auto* const sums = a.sums + first;
  T* const out = as<T>(a.out) + first;
  return {sums, out, is_aligned(sums) && is_aligned(out)};
}
template <class T>
SPILLWAY_ON_DEVICE CopiedTile<T> copied_tile(const Round& a, std::uint64_t first) {
  const T* const values = as<T>(a.values) + first;
  T* const out = a.values == a.out ? nullptr : as<T>(a.out) + first;
  return {values, out, is_aligned(values) && is_aligned(out)};
}
template <class T>
SPILLWAY_ON_DEVICE CopiedTile<T> copied_tile(const Squares& a, const Part& part) {
  const T* const values = as<T>(a.values) + part.first;
  return {values, nullptr, is_aligned(values)};
}

/// Elements of a tile.
SPILLWAY_ON_DEVICE inline std::uint64_t count_of_tile(std::uint64_t n, std::uint64_t tile) {
  const auto left = n - tile * kSquaresTile;
  return left < kSquaresTile ? left : kSquaresTile;
}

/// A thread's groups of one stage.
template <class Tile>
struct OfStage {
  typename Tile::Fetched fetched[kStageGroups] = {};

  /// Where the thread's group `k` begins in the tile, and how many elements it has there.
  SPILLWAY_ON_DEVICE static std::uint64_t first(std::uint64_t at, unsigned thread, unsigned k) {
    return at + std::uint64_t{k * kBlock + thread} * kGroup;
  }
  SPILLWAY_ON_DEVICE void fetch(const Tile& tile, std::uint64_t at, std::uint64_t count, unsigned thread) {
    for (unsigned k = 0; k < kStageGroups; ++k) {
      const auto i = first(at, thread, k);
      if (i < count) fetched[k] = tile.fetch(i, count_of(count - i));
    }
  }
  template <class T>
  SPILLWAY_ON_DEVICE void put(const Tile& tile, std::uint64_t at, std::uint64_t count, unsigned thread,
                              Stage<T>& stage) const {
    for (unsigned k = 0; k < kStageGroups; ++k) {
      const auto i = first(at, thread, k);
      if (i < count) stage.groups[k * kBlock + thread] = tile.put(fetched[k], i, count_of(count - i));
    }
  }
};

/// `sum` and a lane's part of the squares of the first `count` elements of a stage: every 32nd.
template <class T>
SPILLWAY_ON_DEVICE double lane_squares(const Stage<T>& stage, std::uint64_t count, unsigned lane, double sum) {
  const T* const values = reinterpret_cast<const T*>(stage.groups);
  const auto end = count < kStage ? count : kStage;
  for (std::uint64_t i = lane; i < end; i += kWarp) {
    const double value = load(values[i]);
    sum += value * value;
  }
  return sum;
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

/// A thread takes groups of rows.
template <class T>
SPILLWAY_ON_DEVICE void index_select(const IndexSelect& a, Grid grid) {
  const auto groups = groups_of(a.columns);
  const bool aligned = is_aligned(a.values) && is_aligned(a.out) && is_stride_aligned<T>(a.columns);
  for (auto number = grid.thread; number < a.count * groups; number += grid.threads) {
    const auto row = number / groups, first = (number - row * groups) * kGroup;
    const auto count = count_of(a.columns - first);
    const T* const from = as<T>(a.values) + a.index[row] * a.columns + first;
    store_packed(load_packed(from, count, aligned), as<T>(a.out) + row * a.columns + first, count, aligned);
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

/// A thread takes groups of a token's logits.
template <class T>
SPILLWAY_ON_DEVICE void loss_gradient(const LossGradient& a, Grid grid) {
  const auto groups = groups_of(a.logits.rows);
  const bool aligned = is_aligned(a.logits.values) && is_stride_aligned<T>(a.logits.stride);
  for (auto number = grid.thread; number < a.logits.tokens * groups; number += grid.threads) {
    const auto token = number / groups, first = (number - token * groups) * kGroup;
    T* const logits = as<T>(a.logits.values) + token * a.logits.stride + first;
    const auto label = static_cast<std::uint64_t>(a.logits.labels[token]) - a.logits.first_row;
    const float maximum = a.maximum[token], log_sum = a.log_sum[token];
    const auto count = count_of(a.logits.rows - first);
    auto group = load_group(logits, count, aligned);
    for (unsigned k = 0; k < kGroup; ++k) {
      const float probability = kernels::scalar::exp((group.at[k] - maximum) - log_sum);
      group.at[k] = (first + k == label ? probability - 1.0F : probability) * a.scale;
    }
    store_group(group, logits, count, aligned);
  }
}

/// A column of a scattered projector, of one token.
template <class T>
SPILLWAY_ON_DEVICE float scattered_sum(const kernels::Projector& r, const T* in, std::uint64_t column) {
  const auto* const numbers = r.by_column + r.columns + 1;
  float sum = 0;
  for (auto k = r.by_column[column]; k < r.by_column[column + 1]; ++k) {
    sum = std::fma(load(in[numbers[k] % r.stride()]), r.values[numbers[k]], sum);
  }
  return sum;
}

/// Neighbouring threads take neighbouring tokens of one column, whose places are neighbours in blocks.
template <class T>
SPILLWAY_ON_DEVICE void compress(const Compress& a, Grid grid) {
  const auto& r = a.by;
  for (auto i = grid.thread; i < r.columns * a.tokens; i += grid.threads) {
    const auto column = i / a.tokens, token = i - column * a.tokens;
    const T* const in = as<T>(a.in) + token * a.in_stride;
    if (r.is_scattered()) {
      store(scattered_sum(r, in, column), as<T>(a.out)[column * a.out_stride + token]);
      continue;
    }
    const auto group = column / r.nonzeros, end = r.first(group + 1);
    const float* const values = r.values + (column - group * r.nonzeros) * r.stride();
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

/// Element [row, column] of (P * delta) * Q^T.
SPILLWAY_ON_DEVICE inline float scattered_change(const kernels::Expansion& e, std::uint64_t row, std::uint64_t column) {
  const auto &p = e.p, &q = e.q;
  float out = 0;
  for (auto right = column; right < q.nonzeros * q.stride(); right += q.stride()) {
    const float* const from = e.delta + q.places[right];
    float spread = 0;
    for (auto left = row; left < p.nonzeros * p.stride(); left += p.stride()) {
      spread = std::fma(p.values[left], from[p.places[left] * p.columns], spread);
    }
    out = std::fma(q.values[right], spread, out);
  }
  return out;
}

/// The next master of element i.
SPILLWAY_ON_DEVICE inline float changed(const Apply& a, std::uint64_t i, float master) {
  const auto& p = a.expansion.p;
  const auto row = (a.first + i) / a.expansion.q.rows, column = a.first + i - row * a.expansion.q.rows;
  if (p.is_scattered()) return std::fma(master, a.keep, scattered_change(a.expansion, row, column));
  const auto first = p.group_of(row) * p.nonzeros;
  float change = 0;
  for (std::uint64_t s = 0; s < p.nonzeros; ++s) {
    change = std::fma(p.values[s * p.stride() + row], spread(a.expansion, first + s, column), change);
  }
  return std::fma(master, a.keep, change);
}

SPILLWAY_ON_DEVICE inline void apply(const Apply& a, Grid grid) {
  for (auto i = grid.thread; i < a.n; i += grid.threads) {
    const float master = kernels::as_float(kernels::scalar::join_bits(a.weight[i], a.remainder[i]));
    const float next = kernels::quiet(changed(a, i, master));
    kernels::scalar::split_bits(kernels::as_bits(next), a.weight[i], a.remainder[i]);
  }
}

/// Apply of weights without remainders, as it is launched.
struct RoundedApply : Apply {
  kernels::RandomKey key;
};

/// A thread takes the elements whose numbers are of one block of AES.
SPILLWAY_ON_DEVICE inline void apply_rounded(const RoundedApply& a, Grid grid, const kernels::AesBox& box) {
  constexpr auto kAtOnce = kernels::kRandomBlock<std::uint16_t>;
  const auto index = kernels::rounding_index(a.index);
  const auto lead = index % kAtOnce;
  for (auto at = grid.thread; at * kAtOnce < lead + a.n; at += grid.threads) {
    const auto numbers = kernels::scalar::random_state(a.key, index / kAtOnce + at, box);
    for (unsigned k = 0; k < kAtOnce; ++k) {
      const auto i = at * kAtOnce + k - lead;  // of the first block it may wrap around
      if (i >= a.n) continue;
      const auto chance = numbers.columns[k / 2] >> k % 2 * 16 & 0xFFFF;
      a.weight[i] = kernels::round_bf16_randomly(changed(a, i, kernels::widen(a.weight[i])), chance);
    }
  }
}

}  // namespace spillway::device::threads
