// Bytes that no drive can compress.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway::bench {

inline void fill_with_noise(std::span<std::byte> memory) {
  std::ranges::generate(memory, [word = std::uint32_t{1}]() mutable {
    word = word * 1664525 + 1013904223;
    return static_cast<std::byte>(word >> 24);
  });
}

}  // namespace spillway::bench
