#include "spillway/kernels/nested_scales.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "spillway/kernels/packed.h"

namespace spillway::kernels {
namespace {

/// The code whose value is next to `x`, a number in [-1, 1].
std::uint8_t nearest_code(float x) {
  static const auto kValues = [] {
    std::array<float, 256> out{};
    for (std::size_t code = 0; code < out.size(); ++code) {
      out[code] = scalar::dynamic_value(static_cast<std::uint8_t>(code));
    }
    return out;
  }();
  const auto above = std::ranges::upper_bound(kValues, x);
  if (above == kValues.begin()) return 0;
  const auto below = static_cast<std::size_t>(above - kValues.begin()) - 1;
  const bool next = above != kValues.end() && std::abs(x - *above) < std::abs(x - kValues[below]);
  return static_cast<std::uint8_t>(below + (next ? 1 : 0));
}

void pack_group(const float* scales, std::size_t n, float mean, std::uint8_t* codes, ScaleGroup& group) {
  float largest = 0;
  for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(scales[i] - mean));
  group = {largest, mean};
  for (std::size_t i = 0; i < n; ++i) codes[i] = nearest_code(largest > 0 ? (scales[i] - mean) / largest : 0.0F);
}

}  // namespace

void ScaleMean::add(const float* values, std::size_t n) {
  for (std::size_t first = 0; first < n; first += kPackedBlock) {
    sum_ += nf4_scale(values + first, std::min<std::size_t>(kPackedBlock, n - first));
    blocks_ += 1;
  }
  values_ += n;
}

float ScaleMean::mean() const noexcept {
  return blocks_ == 0 ? 0.0F : static_cast<float>(sum_ / static_cast<double>(blocks_));
}

void pack_scales(const float* scales, std::size_t n, float mean, std::uint8_t* codes, ScaleGroup* groups) {
  for (std::size_t first = 0; first < n; first += kNestedBlocks) {
    const auto count = std::min<std::size_t>(kNestedBlocks, n - first);
    pack_group(scales + first, count, mean, codes + first, groups[first / kNestedBlocks]);
  }
}

void unpack_scales(const std::uint8_t* codes, const ScaleGroup* groups, std::uint64_t first, std::size_t n,
                   float* scales) {
  for (std::size_t i = 0; i < n; ++i) scales[i] = scalar::nested_scale(codes, groups, first + i);
}

}  // namespace spillway::kernels
