// A decoder-only transformer by its sizes: what planning needs where no list of tensors is at hand.
#pragma once

#include <cstdint>
#include <string>

namespace spillway::study {

/// Gated feed-forward, grouped keys, norms without bias: the Llama and Qwen2 families.
struct DecoderShape {
  std::string name;
  std::uint64_t layers = 0, hidden = 0, feed_forward = 0;
  std::uint64_t query = 0;  ///< heads times their size
  std::uint64_t key = 0;    ///< the same of keys
  std::uint64_t vocabulary = 0;
  bool tied = false;  ///< embedding and head are one table
  bool qkv_bias = false;

  [[nodiscard]] constexpr std::uint64_t layer_parameters() const noexcept {
    const auto bias = qkv_bias ? query + 2 * key : 0;
    return 2 * hidden * query + 2 * hidden * key + 3 * hidden * feed_forward + 2 * hidden + bias;
  }
  [[nodiscard]] constexpr std::uint64_t table() const noexcept { return vocabulary * hidden; }
  [[nodiscard]] constexpr std::uint64_t parameters() const noexcept {
    return layers * layer_parameters() + table() * (tied ? 1 : 2) + hidden;
  }
};

}  // namespace spillway::study
