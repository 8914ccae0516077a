// Byte counts and alignment arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace spillway {

using Bytes = std::uint64_t;

inline constexpr Bytes KiB = 1024;
inline constexpr Bytes MiB = 1024 * KiB;
inline constexpr Bytes GiB = 1024 * MiB;

/// `value` rounded up to a multiple of `unit` (> 0).
[[nodiscard]] constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t unit) noexcept {
  return value / unit * unit;
}

[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

[[nodiscard]] constexpr std::uint64_t ceil_div(std::uint64_t value, std::uint64_t unit) noexcept {
  return (value + unit - 1) / unit;
}

/// "1.50 GiB", "12.0 MiB", "17 B": for messages.
[[nodiscard]] std::string human(Bytes bytes);

}  // namespace spillway
