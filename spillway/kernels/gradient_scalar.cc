#include <algorithm>
#include <bit>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/fp16.h"
#include "spillway/kernels/gradient.h"
#include "spillway/kernels/lanes.h"

namespace spillway::kernels::scalar {
namespace {

/// Tile sums, one after the other; within a tile element i belongs to lane i mod kNormLanes. `take(i)` writes element i
/// and returns it.
template <class Take>
Norm norm_of(std::size_t n, const Take& take) {
  double sum = 0;
  for (std::size_t tile = 0; tile < n; tile += kNormTile) {
    double lanes[kNormLanes] = {};
    const std::size_t end = std::min(n, tile + kNormTile);
    for (std::size_t i = tile; i < end; ++i) {
      const double value = take(i);
      lanes[i % kNormLanes] += value * value;
    }
    sum += tree_sum(lanes);
  }
  return {quiet(sum)};
}

}  // namespace

Norm copy_norm(const std::uint16_t* in, std::uint16_t* out, std::size_t n) {
  return norm_of(n, [=](std::size_t i) { return kernels::widen(out[i] = in[i]); });
}

// Copied as integers: a float register would be allowed to change a signalling NaN.
Norm copy_norm(const float* in, float* out, std::size_t n) {
  return norm_of(n, [=](std::size_t i) {
    const auto bits = std::bit_cast<std::uint32_t>(in[i]);
    out[i] = std::bit_cast<float>(bits);
    return std::bit_cast<float>(bits);
  });
}

Norm round_norm(const float* in, std::uint16_t* out, std::size_t n) {
  return norm_of(n, [=](std::size_t i) { return kernels::widen(out[i] = round_bf16(in[i])); });
}

void widen(const std::uint16_t* in, float* sum, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) sum[i] = kernels::widen(in[i]);
}

void add(const std::uint16_t* in, float* sum, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) sum[i] = quiet(sum[i] + kernels::widen(in[i]));
}

void add(const float* in, float* sum, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) sum[i] = quiet(sum[i] + in[i]);
}

Norm copy_norm_fp16(const std::uint16_t* in, std::uint16_t* out, std::size_t n) {
  return norm_of(n, [=](std::size_t i) { return kernels::widen_fp16(out[i] = in[i]); });
}

Norm round_norm_fp16(const float* in, std::uint16_t* out, std::size_t n) {
  return norm_of(n, [=](std::size_t i) { return kernels::widen_fp16(out[i] = round_fp16(in[i])); });
}

void widen_fp16(const std::uint16_t* in, float* sum, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) sum[i] = kernels::widen_fp16(in[i]);
}

void add_fp16(const std::uint16_t* in, float* sum, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) sum[i] = quiet(sum[i] + kernels::widen_fp16(in[i]));
}

}  // namespace spillway::kernels::scalar
