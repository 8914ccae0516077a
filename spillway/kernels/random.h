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

namespace scalar {

/// SubBytes, ShiftRows, MixColumns and AddRoundKey of FIPS 197; byte 0 of the state is the lowest of word 0.
[[nodiscard]] std::array<std::uint64_t, 2> aes_round(std::array<std::uint64_t, 2> state,
                                                     std::array<std::uint64_t, 2> key);
/// The numbers of the elements 4 * block to 4 * block + 3, of 32 bits.
[[nodiscard]] std::array<std::uint32_t, 4> random_block(const RandomKey& key, std::uint64_t block);
[[nodiscard]] std::uint32_t random(const RandomKey& key, std::uint64_t index);
[[nodiscard]] std::uint16_t random16(const RandomKey& key, std::uint64_t index);

}  // namespace scalar

}  // namespace spillway::kernels
