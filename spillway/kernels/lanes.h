// Virtual lanes: element i of a span is added to lane i mod L, and lanes are added pairwise in a fixed tree. Vectors of
// any width fill the same lanes, so that every instruction set, and the scalar reference, gives the same bits.
#pragma once

#include <cstddef>

namespace spillway::kernels {

inline constexpr std::size_t kNormLanes = 32;     ///< double; enough to hide the latency of 4 AVX-512 additions
inline constexpr std::size_t kSoftmaxLanes = 64;  ///< float

/// Sum of the lanes: the upper half onto the lower half until one is left.
template <class T, std::size_t L>
[[nodiscard]] inline T tree_sum(T (&lanes)[L]) noexcept {
  static_assert((L & (L - 1)) == 0);
  for (std::size_t half = L / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

}  // namespace spillway::kernels
