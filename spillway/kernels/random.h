// Random numbers for stochastic rounding: 32 or 16 bits for every element of a run and step, a pure function of seed,
// step and the element's index, so that cutting a span elsewhere changes nothing.
//
// With 32 bits element i has word i mod 4 of the block (i / 4, 0), with 16 half-word i mod 8 of the block (i / 8, 0),
// encrypted under the key (seed, step) by five rounds of AES with Weyl keys: the ARS-5 of Salmon, Moraes, Dror & Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC'11, but that the last round mixes its columns too. CPUs do a
// round in one instruction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "spillway/base/on_device.h"

namespace spillway::kernels {

inline constexpr std::size_t kRandomRounds = 5;
/// Elements that share a block of AES when each has a Word.
template <class Word>
inline constexpr std::size_t kRandomBlock = 16 / sizeof(Word);

/// What a step's numbers are drawn with: before the first round, and after each.
struct RandomKey {
  std::array<std::array<std::uint64_t, 2>, kRandomRounds + 1> rounds;

  RandomKey(std::uint64_t seed, std::int64_t step) {
    std::uint64_t low = seed, high = static_cast<std::uint64_t>(step);
    for (auto& round : rounds) {
      round = {low, high};
      low += 0x9E3779B97F4A7C15;
      high += 0xBB67AE8584CAA73B;
    }
  }
};

/// The substitutes of SubBytes (FIPS 197).
struct AesBox {
  std::uint8_t of[256] = {};
};

/// The inverse in GF(2^8), then the affine map: p runs through the powers of 3 and q through those of its inverse.
[[nodiscard]] constexpr AesBox make_aes_box() noexcept {
  AesBox box;
  std::uint8_t p = 1, q = 1;
  do {
    p = static_cast<std::uint8_t>(p ^ p << 1 ^ (p & 0x80 ? 0x1B : 0));
    q = static_cast<std::uint8_t>(q ^ q << 1);
    q = static_cast<std::uint8_t>(q ^ q << 2);
    q = static_cast<std::uint8_t>(q ^ q << 4);
    if (q & 0x80) q ^= 0x09;
    const unsigned twice = q * 0x101u;  // rotated by n: twice >> (8 - n)
    box.of[p] = static_cast<std::uint8_t>(twice ^ twice >> 7 ^ twice >> 6 ^ twice >> 5 ^ twice >> 4 ^ 0x63);
  } while (p != 1);
  box.of[0] = 0x63;
  return box;
}

/// The state of AES: word i is column i, its lowest byte row 0.
struct AesState {
  std::uint32_t columns[4];
};

namespace scalar {

/// SubBytes and ShiftRows, of one column.
[[nodiscard]] SPILLWAY_ON_DEVICE inline std::uint32_t substituted_column(const AesState& state, unsigned column,
                                                                         const AesBox& box) noexcept {
  std::uint32_t out = 0;
  for (unsigned row = 0; row < 4; ++row) {
    const std::uint32_t byte = state.columns[(column + row) % 4] >> 8 * row & 0xFF;
    out |= static_cast<std::uint32_t>(box.of[byte]) << 8 * row;
  }
  return out;
}

/// MixColumns: each byte doubled in GF(2^8), the next one tripled, the other two as they are.
[[nodiscard]] SPILLWAY_ON_DEVICE inline std::uint32_t mixed_column(std::uint32_t column) noexcept {
  const auto next = [column](unsigned rows) { return column >> 8 * rows | column << (32 - 8 * rows); };
  const std::uint32_t sum = column ^ next(1);
  const std::uint32_t doubled = (sum & 0x7F7F7F7F) << 1 ^ (sum >> 7 & 0x01010101) * 0x1B;
  return doubled ^ next(1) ^ next(2) ^ next(3);
}

/// SubBytes, ShiftRows, MixColumns and AddRoundKey of FIPS 197.
[[nodiscard]] SPILLWAY_ON_DEVICE inline AesState aes_round(const AesState& state,
                                                           const std::array<std::uint64_t, 2>& key,
                                                           const AesBox& box) noexcept {
  AesState out;
  for (unsigned i = 0; i < 4; ++i) {
    out.columns[i] =
        mixed_column(substituted_column(state, i, box)) ^ static_cast<std::uint32_t>(key[i / 2] >> 32 * (i % 2));
  }
  return out;
}

/// The numbers of the elements 4 * block to 4 * block + 3 of 32 bits, or of twice as many of 16 bits, the lower half of
/// a word first.
[[nodiscard]] SPILLWAY_ON_DEVICE inline AesState random_state(const RandomKey& key, std::uint64_t block,
                                                              const AesBox& box) noexcept {
  const std::uint64_t low = block ^ key.rounds[0][0], high = key.rounds[0][1];
  AesState state = {{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
                     static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)}};
  for (std::size_t r = 1; r <= kRandomRounds; ++r) state = aes_round(state, key.rounds[r], box);
  return state;
}

/// Byte 0 of the state is the lowest of word 0.
[[nodiscard]] std::array<std::uint64_t, 2> aes_round(std::array<std::uint64_t, 2> state,
                                                     std::array<std::uint64_t, 2> key);
/// The numbers of the elements 4 * block to 4 * block + 3, of 32 bits.
[[nodiscard]] std::array<std::uint32_t, 4> random_block(const RandomKey& key, std::uint64_t block);
[[nodiscard]] std::uint32_t random(const RandomKey& key, std::uint64_t index);
[[nodiscard]] std::uint16_t random16(const RandomKey& key, std::uint64_t index);

}  // namespace scalar

}  // namespace spillway::kernels
