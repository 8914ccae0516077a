#include <bit>

#include "spillway/kernels/random.h"

namespace spillway::kernels::scalar {
namespace {

using Bytes = std::array<std::uint8_t, 16>;

constexpr std::uint8_t doubled(std::uint8_t x) {
  return static_cast<std::uint8_t>(x << 1 ^ (x & 0x80 ? 0x1B : 0));
}

/// The inverse in GF(2^8), then the affine map: p runs through the powers of 3 and q through those of its inverse.
constexpr std::array<std::uint8_t, 256> make_sbox() {
  std::array<std::uint8_t, 256> box = {};
  std::uint8_t p = 1, q = 1;
  do {
    p = static_cast<std::uint8_t>(p ^ doubled(p));
    q = static_cast<std::uint8_t>(q ^ q << 1);
    q = static_cast<std::uint8_t>(q ^ q << 2);
    q = static_cast<std::uint8_t>(q ^ q << 4);
    if (q & 0x80) q ^= 0x09;
    box[p] =
        static_cast<std::uint8_t>(q ^ std::rotl(q, 1) ^ std::rotl(q, 2) ^ std::rotl(q, 3) ^ std::rotl(q, 4) ^ 0x63);
  } while (p != 1);
  box[0] = 0x63;
  return box;
}

constexpr auto kSbox = make_sbox();

Bytes shifted_substitutes(const Bytes& in) {
  Bytes out;
  for (std::size_t i = 0; i < 16; ++i) out[i] = kSbox[in[(i + 4 * (i % 4)) % 16]];
  return out;
}

Bytes mixed_columns(const Bytes& in) {
  Bytes out;
  for (std::size_t i = 0; i < 16; ++i) {
    const auto at = [&](std::size_t row) { return in[i / 4 * 4 + (i + row) % 4]; };
    out[i] = static_cast<std::uint8_t>(doubled(at(0)) ^ doubled(at(1)) ^ at(1) ^ at(2) ^ at(3));
  }
  return out;
}

}  // namespace

std::array<std::uint64_t, 2> aes_round(std::array<std::uint64_t, 2> state, std::array<std::uint64_t, 2> key) {
  const auto mixed = mixed_columns(shifted_substitutes(std::bit_cast<Bytes>(state)));
  const auto words = std::bit_cast<std::array<std::uint64_t, 2>>(mixed);
  return {words[0] ^ key[0], words[1] ^ key[1]};
}

std::array<std::uint32_t, 4> random_block(const RandomKey& key, std::uint64_t block) {
  std::array<std::uint64_t, 2> state = {block ^ key.rounds[0][0], key.rounds[0][1]};
  for (std::size_t r = 1; r <= kRandomRounds; ++r) state = aes_round(state, key.rounds[r]);
  return std::bit_cast<std::array<std::uint32_t, 4>>(state);
}

std::uint32_t random(const RandomKey& key, std::uint64_t index) {
  return random_block(key, index / 4)[index % 4];
}

std::uint16_t random16(const RandomKey& key, std::uint64_t index) {
  return std::bit_cast<std::array<std::uint16_t, 8>>(random_block(key, index / 8))[index % 8];
}

}  // namespace spillway::kernels::scalar
