// What one thread of each kernel of fused.h does; the references on the host are made of the same functions.
//
// Threads take groups of 8 elements, by loads and stores of 16 bytes where all that a kernel touches is aligned so.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "spillway/base/on_device.h"
#include "spillway/device/cuda_threads.h"
#include "spillway/device/fused.h"
#include "spillway/kernels/softmax_exp.h"

namespace spillway::device::threads {

template <class T>
SPILLWAY_ON_DEVICE bool is_aligned(const RmsNorm& a) {
  return is_aligned(a.values) && is_aligned(a.weight) && is_stride_aligned<T>(a.columns);
}

// ---- RMSNorm

/// A lane's part of a row's sum of squares. With an addend, a lane writes those elements of the sum that `normalise`
/// has it read.
template <class T>
SPILLWAY_ON_DEVICE float lane_square_sum(const RmsNormForward& it, std::uint64_t row, unsigned lane) {
  const auto& a = it.norm;
  const auto first = row * a.columns;
  const bool aligned = is_aligned<T>(a) && is_aligned(it.addend) && is_aligned(it.sum);
  float out = 0;
  for (std::uint64_t i = lane * kGroup; i < a.columns; i += kWarp * kGroup) {
    const auto count = count_of(a.columns - i);
    auto group = load_group(as<T>(a.values) + first + i, count, aligned);
    if (it.addend != nullptr) {
      const auto addend = load_group(as<T>(it.addend) + first + i, count, aligned);
      for (unsigned k = 0; k < kGroup; ++k) group.at[k] = rounded<T>(group.at[k] + addend.at[k]);
      store_group(group, as<T>(it.sum) + first + i, count, aligned);
    }
    for (unsigned k = 0; k < kGroup; ++k) out += group.at[k] * group.at[k];
  }
  return out;
}

/// One over the root of a row's mean square.
SPILLWAY_ON_DEVICE inline float inverse_root(const RmsNorm& a, float square_sum) {
  return 1.0F / std::sqrt(square_sum / static_cast<float>(a.columns) + a.epsilon);
}

/// What the weight multiplies.
template <class T>
SPILLWAY_ON_DEVICE float normalised(const RmsNorm& a, float value, float inverse) {
  const float out = value * inverse;
  return a.rounds_early ? rounded<T>(out) : out;
}

/// d loss / d normalised value.
template <class T>
SPILLWAY_ON_DEVICE float weighted(const RmsNorm& a, float gradient, float weight) {
  const float out = gradient * (a.offset + weight);
  return a.rounds_early ? rounded<T>(out) : out;
}

/// A lane's part of a row.
template <class T>
SPILLWAY_ON_DEVICE void normalise(const RmsNormForward& it, std::uint64_t row, unsigned lane, float square_sum) {
  const auto& a = it.norm;
  const auto first = row * a.columns;
  const std::byte* const from = it.addend == nullptr ? a.values : it.sum;
  const bool aligned = is_aligned<T>(a) && is_aligned(from) && is_aligned(it.out);
  const float inverse = inverse_root(a, square_sum);
  for (std::uint64_t i = lane * kGroup; i < a.columns; i += kWarp * kGroup) {
    const auto count = count_of(a.columns - i);
    const auto values = load_group(as<T>(from) + first + i, count, aligned);
    auto weights = load_group(as<T>(a.weight) + i, count, aligned);
    for (unsigned k = 0; k < kGroup; ++k) {
      weights.at[k] = normalised<T>(a, values.at[k], inverse) * (a.offset + weights.at[k]);
    }
    store_group(weights, as<T>(it.out) + first + i, count, aligned);
  }
}

/// What backward adds of a row.
struct RowSums {
  float squares = 0, products = 0;  ///< of values, and of gradient * weight * value
};

/// A lane's part of them.
template <class T>
SPILLWAY_ON_DEVICE RowSums lane_row_sums(const RmsNormScales& it, std::uint64_t row, unsigned lane) {
  const auto& a = it.norm;
  const auto first = row * a.columns;
  const bool aligned = is_aligned<T>(a) && is_aligned(it.gradient);
  RowSums out;
  for (std::uint64_t i = lane * kGroup; i < a.columns; i += kWarp * kGroup) {
    const auto count = count_of(a.columns - i);
    const auto values = load_group(as<T>(a.values) + first + i, count, aligned);
    const auto gradient = load_group(as<T>(it.gradient) + first + i, count, aligned);
    const auto weights = load_group(as<T>(a.weight) + i, count, aligned);
    for (unsigned k = 0; k < kGroup; ++k) {
      out.squares += values.at[k] * values.at[k];
      out.products += weighted<T>(a, gradient.at[k], weights.at[k]) * values.at[k];
    }
  }
  return out;
}

/// One thread of the row's.
SPILLWAY_ON_DEVICE inline void end_scales(const RmsNormScales& it, std::uint64_t row, RowSums sums) {
  const float inverse = inverse_root(it.norm, sums.squares);
  it.scales[2 * row] = kernels::quiet(inverse);
  it.scales[2 * row + 1] =
      kernels::quiet(inverse * inverse * inverse * (sums.products / static_cast<float>(it.norm.columns)));
}

/// One group of columns of a tile of rows.
template <class T>
SPILLWAY_ON_DEVICE void differentiate_norm(const RmsNormBackward& it, std::uint64_t tile, std::uint64_t column,
                                           bool aligned) {
  const auto& a = it.norm;
  const auto count = count_of(a.columns - column);
  const auto left = a.rows - tile * kNormRows;
  const auto rows = static_cast<unsigned>(left < kNormRows ? left : kNormRows);
  const auto weights = load_group(as<T>(a.weight) + column, count, aligned);
  Group sums{};
  for (unsigned i = 0; i < rows; ++i) {
    const auto row = tile * kNormRows + i, at = row * a.columns + column;
    const auto values = load_group(as<T>(a.values) + at, count, aligned);
    auto gradient = load_group(as<T>(it.gradient) + at, count, aligned);
    const float inverse = it.scales[2 * row], along = it.scales[2 * row + 1];
    for (unsigned k = 0; k < kGroup; ++k) {
      sums.at[k] += gradient.at[k] * normalised<T>(a, values.at[k], inverse);
      gradient.at[k] = weighted<T>(a, gradient.at[k], weights.at[k]) * inverse - values.at[k] * along;
    }
    if (it.skip_gradient != nullptr) {
      const auto skip = load_group(as<T>(it.skip_gradient) + at, count, aligned);
      for (unsigned k = 0; k < kGroup; ++k) gradient.at[k] = rounded<T>(gradient.at[k]) + skip.at[k];
    }
    store_group(gradient, as<T>(it.out) + at, count, aligned);
  }
  if (it.sums == nullptr) return;
  const bool sums_aligned = is_aligned(it.sums) && is_stride_aligned<float>(a.columns);
  store_group(sums, it.sums + tile * a.columns + column, count, sums_aligned);
}

/// Neighbouring threads take neighbouring groups of one tile.
template <class T>
SPILLWAY_ON_DEVICE void differentiate_norms(const RmsNormBackward& it, Grid grid) {
  const auto groups = groups_of(it.norm.columns), tiles = norm_tiles(it.norm.rows);
  const bool aligned =
      is_aligned<T>(it.norm) && is_aligned(it.gradient) && is_aligned(it.out) && is_aligned(it.skip_gradient);
  const auto tiles_on = grid.threads / groups, groups_on = grid.threads - tiles_on * groups;
  auto tile = grid.thread / groups, group = grid.thread - tile * groups;
  while (tile < tiles) {
    differentiate_norm<T>(it, tile, group * kGroup, aligned);
    tile += tiles_on, group += groups_on;
    if (group >= groups) group -= groups, ++tile;
  }
}

/// A lane's part of a column.
SPILLWAY_ON_DEVICE inline float lane_tile_sum(const RmsNormWeight& it, std::uint64_t column, unsigned lane) {
  float out = 0;
  for (std::uint64_t tile = lane; tile < it.tiles; tile += kWarp) out += it.sums[tile * it.columns + column];
  return out;
}

// ---- SwiGLU

SPILLWAY_ON_DEVICE inline float sigmoid(float value) {
  return 1.0F / (1.0F + kernels::scalar::exp(-value));
}
SPILLWAY_ON_DEVICE inline float silu(float value) {
  return value / (1.0F + kernels::scalar::exp(-value));
}

template <class T>
SPILLWAY_ON_DEVICE void swiglu(const SwiGlu& a, Grid grid) {
  const bool aligned = is_aligned(a.gate) && is_aligned(a.up) && is_aligned(a.out);
  for (auto i = grid.thread * kGroup; i < a.n; i += grid.threads * kGroup) {
    const auto count = count_of(a.n - i);
    const auto gate = load_group(as<T>(a.gate) + i, count, aligned);
    auto up = load_group(as<T>(a.up) + i, count, aligned);
    for (unsigned k = 0; k < kGroup; ++k) up.at[k] = rounded<T>(silu(gate.at[k])) * up.at[k];
    store_group(up, as<T>(a.out) + i, count, aligned);
  }
}

template <class T>
SPILLWAY_ON_DEVICE void swiglu_backward(const SwiGluBackward& a, Grid grid) {
  const bool aligned = is_aligned(a.gate) && is_aligned(a.up) && is_aligned(a.gradient) &&
                       is_aligned(a.gate_gradient) && is_aligned(a.up_gradient) && is_aligned(a.product);
  for (auto i = grid.thread * kGroup; i < a.n; i += grid.threads * kGroup) {
    const auto count = count_of(a.n - i);
    auto gate = load_group(as<T>(a.gate) + i, count, aligned);
    auto up = load_group(as<T>(a.up) + i, count, aligned);
    auto gradient = load_group(as<T>(a.gradient) + i, count, aligned);
    for (unsigned k = 0; k < kGroup; ++k) {
      const float value = gate.at[k], share = sigmoid(value), gated = rounded<T>(silu(value)), other = up.at[k];
      gate.at[k] = rounded<T>(gradient.at[k] * other) * share * (1.0F + value * (1.0F - share));
      up.at[k] = gradient.at[k] * gated;
      gradient.at[k] = gated * other;
    }
    if (a.product != nullptr) store_group(gradient, as<T>(a.product) + i, count, aligned);
    store_group(gate, as<T>(a.gate_gradient) + i, count, aligned);
    store_group(up, as<T>(a.up_gradient) + i, count, aligned);
  }
}

// ---- rotary embedding

template <class T>
SPILLWAY_ON_DEVICE bool is_stride_aligned(const Rotary::Strides& strides) {
  return is_stride_aligned<T>(strides.sequence) && is_stride_aligned<T>(strides.head) &&
         is_stride_aligned<T>(strides.token);
}

/// own * cosines + other * sines, or less that.
template <class T>
SPILLWAY_ON_DEVICE Group turned(const Group& own, const Group& other, const T* cosines, const T* sines, bool less,
                                unsigned count, bool aligned) {
  auto out = load_group(cosines, count, aligned);
  const auto sine = load_group(sines, count, aligned);
  for (unsigned k = 0; k < kGroup; ++k) {
    const float crossing = rounded<T>(other.at[k] * sine.at[k]);
    out.at[k] = rounded<T>(own.at[k] * out.at[k]) + (less ? -crossing : crossing);
  }
  return out;
}

/// Both halves of a group of pairs. Forward each half takes the sines of its own place, backward those of the other.
template <class T>
SPILLWAY_ON_DEVICE void rotate_group(const Rotary& a, const T* in, const T* cosines, const T* sines, T* out,
                                     unsigned count, bool aligned) {
  const auto low = load_group(in, count, aligned), high = load_group(in + a.half, count, aligned);
  const auto low_sines = a.backward ? a.half : 0, high_sines = a.half - low_sines;
  store_group(turned(low, high, cosines, sines + low_sines, !a.backward, count, aligned), out, count, aligned);
  store_group(turned(high, low, cosines + a.half, sines + high_sines, a.backward, count, aligned), out + a.half, count,
              aligned);
}

template <class T>
SPILLWAY_ON_DEVICE void rotate(const Rotary& a, Grid grid) {
  const auto groups = groups_of(a.half), all = groups * a.heads * a.tokens * a.sequences;
  const bool aligned = is_aligned(a.in) && is_aligned(a.cosines) && is_aligned(a.sines) && is_aligned(a.out) &&
                       is_stride_aligned<T>(a.half) && is_stride_aligned<T>(a.in_strides) &&
                       is_stride_aligned<T>(a.out_strides) && is_stride_aligned<T>(a.table_strides);
  for (auto i = grid.thread; i < all; i += grid.threads) {
    const auto by_head = i / groups, by_token = by_head / a.heads, sequence = by_token / a.tokens;
    const auto element = (i - by_head * groups) * kGroup, head = by_head - by_token * a.heads;
    const auto token = by_token - sequence * a.tokens;
    const auto place = [=](const Rotary::Strides& by) {
      return sequence * by.sequence + head * by.head + token * by.token + element;
    };
    const auto table = place(a.table_strides);
    rotate_group(a, as<T>(a.in) + place(a.in_strides), as<T>(a.cosines) + table, as<T>(a.sines) + table,
                 as<T>(a.out) + place(a.out_strides), count_of(a.half - element), aligned);
  }
}

}  // namespace spillway::device::threads
