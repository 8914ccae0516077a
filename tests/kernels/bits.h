// What the kernel tests share: every instruction set in turn, patterns that hurt, comparison bit by bit.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "spillway/kernels/gradient.h"

namespace spillway::kernels::testing {

/// Calls `body` once on every instruction set that this machine has and this build holds.
template <class Body>
void on_every_target(const Body& body) {
  const auto targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const std::int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

/// A 32-bit integer hash: random patterns that are the same everywhere.
inline std::uint32_t mix(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352D;
  x = (x ^ (x >> 15)) * 0x846CA68B;
  return x ^ (x >> 16);
}

/// Lengths around the lanes of every vector there is: 4, 8, 16, 32 and 64 elements.
inline std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all = {0, 1, 2};
  for (std::size_t lanes : {4, 8, 16, 32, 64}) {
    for (std::size_t n : {lanes - 1, lanes, lanes + 1, 3 * lanes + 5}) all.push_back(n);
  }
  return all;
}

/// And lengths around the tiles of a norm.
inline std::vector<std::size_t> lengths_and_tiles() {
  auto all = lengths();
  for (const std::size_t n : {kNormTile - 1, kNormTile, kNormTile + 1, 2 * kNormTile + 37}) all.push_back(n);
  return all;
}

inline const std::vector<std::uint32_t>& special_floats() {
  static const std::vector<std::uint32_t> bits = {
      0x00000000, 0x80000000,                          // zeros
      0x00000001, 0x80000001, 0x007FFFFF, 0x00012345,  // denormals
      0x00800000, 0x7F7FFFFF, 0xFF7FFFFF,              // the smallest and the largest normal numbers
      0x7F800000, 0xFF800000,                          // infinities
      0x7FC00000, 0xFFC00001, 0x7F800001, 0xFFFFFFFF,  // NaNs, quiet and signalling
      0x3F800000, 0x3F808000, 0x3F818000, 0x3F807FFF,  // ties and near ties of bf16
      0x7F7F8000, 0x7FFF8000,                          // round up to infinity; a NaN whose rounding would wrap
  };
  return bits;
}

/// n elements of T (float, or bf16 as uint16_t): ordinary numbers of many magnitudes, one in `rarity` a special one
/// (0: none). `offset` elements stand in front, so that data() + offset is misaligned by so many.
template <class T>
std::vector<T> numbers(std::size_t n, std::size_t offset, std::uint32_t seed, std::uint32_t rarity) {
  std::vector<T> all(n + offset);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::uint32_t h = mix(static_cast<std::uint32_t>(i) + seed * 0x9E3779B9u);
    std::uint32_t bits = (h & 0x807FFFFF) | (100 + (h >> 27)) << 23;
    if (rarity != 0 && mix(h) % rarity == 0) bits = special_floats()[mix(h + 1) % special_floats().size()];
    if constexpr (std::is_same_v<T, float>) {
      all[i] = std::bit_cast<float>(bits);
    } else {
      all[i] = static_cast<T>(bits >> 16);
    }
  }
  return all;
}

inline std::uint16_t bits_of(std::uint16_t x) {
  return x;
}
inline std::uint32_t bits_of(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
inline std::uint64_t bits_of(double x) {
  return std::bit_cast<std::uint64_t>(x);
}

template <class T>
void expect_same(const std::vector<T>& expected, const std::vector<T>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  if (expected.empty() || std::memcmp(expected.data(), actual.data(), expected.size() * sizeof(T)) == 0) return;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(bits_of(expected[i]), bits_of(actual[i])) << "element " << i << " of " << expected.size();
  }
}

}  // namespace spillway::kernels::testing
