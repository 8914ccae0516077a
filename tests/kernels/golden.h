// The start and the gradients of the golden tests; make_adamw_golden.py has the same, element by element.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/kernels/bits.h"

namespace spillway::kernels::testing {

inline constexpr std::size_t kGoldenElements = 64;

/// fp32 weights of magnitude 2^-11 to 2^4, every bit of the fraction in use.
inline std::vector<float> golden_master() {
  std::vector<float> master(kGoldenElements);
  for (std::uint32_t i = 0; i < kGoldenElements; ++i) {
    const std::uint32_t h = mix(i + 1);
    master[i] = std::bit_cast<float>((h & 0x807FFFFF) | ((116 + (h >> 27)) % 16 + 116) << 23);
  }
  return master;
}

/// bf16 gradients of magnitude 2^-23 to 2^8, one of eight zero.
inline std::vector<std::uint16_t> golden_gradient(std::uint32_t step) {
  std::vector<std::uint16_t> grad(kGoldenElements);
  for (std::uint32_t i = 0; i < kGoldenElements; ++i) {
    const std::uint32_t h = mix(i + 1000 * step);
    const bool zero = ((h >> 20) & 7) == 0;
    grad[i] = zero ? std::uint16_t{0} : static_cast<std::uint16_t>((h & 0x807F) | (104 + (h >> 27)) << 7);
  }
  return grad;
}

template <class T>
std::byte* bytes(std::vector<T>& all) {
  return reinterpret_cast<std::byte*>(all.data());
}
template <class T>
const std::byte* bytes(const std::vector<T>& all) {
  return reinterpret_cast<const std::byte*>(all.data());
}

inline void expect_golden(const std::uint32_t* golden, const std::vector<float>& actual, const char* field) {
  for (std::size_t i = 0; i < kGoldenElements; ++i) {
    ASSERT_EQ(golden[i], bits_of(actual[i])) << field << ", element " << i;
  }
}

}  // namespace spillway::kernels::testing
