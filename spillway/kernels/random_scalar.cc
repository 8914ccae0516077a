#include <bit>

#include "spillway/kernels/random.h"

namespace spillway::kernels::scalar {
namespace {

constexpr auto kBox = make_aes_box();

}  // namespace

std::array<std::uint64_t, 2> aes_round(std::array<std::uint64_t, 2> state, std::array<std::uint64_t, 2> key) {
  return std::bit_cast<std::array<std::uint64_t, 2>>(aes_round(std::bit_cast<AesState>(state), key, kBox));
}

std::array<std::uint32_t, 4> random_block(const RandomKey& key, std::uint64_t block) {
  return std::bit_cast<std::array<std::uint32_t, 4>>(random_state(key, block, kBox));
}

std::uint32_t random(const RandomKey& key, std::uint64_t index) {
  return random_block(key, index / 4)[index % 4];
}

std::uint16_t random16(const RandomKey& key, std::uint64_t index) {
  return std::bit_cast<std::array<std::uint16_t, 8>>(random_block(key, index / 8))[index % 8];
}

}  // namespace spillway::kernels::scalar
