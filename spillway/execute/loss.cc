#include "spillway/execute/loss.h"

#include <bit>

#include "spillway/kernels/softmax.h"

namespace spillway::execute {
namespace {

constexpr std::uint64_t kTokensPerTile = 16;

float logit_at(const LogitSlice& slice, std::uint64_t token, std::uint64_t row) {
  const auto at = token * slice.rows + row;
  if (slice.type == state::ComputeType::fp32) return reinterpret_cast<const float*>(slice.logits)[at];
  return std::bit_cast<float>(std::uint32_t{reinterpret_cast<const std::uint16_t*>(slice.logits)[at]} << 16);
}

/// Index of the label in the slice; `rows` or more when it is elsewhere.
std::uint64_t label_in(const LogitSlice& slice, std::uint64_t token) {
  return static_cast<std::uint64_t>(slice.labels[token]) - slice.first_row;
}

template <class Body>
void by_token(const LogitSlice& slice, Team& team, const Body& body) {
  team.run(ceil_div(slice.tokens, kTokensPerTile), [&](std::size_t tile) {
    const auto end = std::min((tile + 1) * kTokensPerTile, slice.tokens);
    for (auto token = tile * kTokensPerTile; token < end; ++token) body(token);
  });
}

}  // namespace

void loss_stats(const LogitSlice& slice, float* maximum, float* sum, float* gold, Team& team) {
  by_token(slice, team, [&](std::uint64_t token) {
    const auto at = token * slice.rows;
    if (slice.type == state::ComputeType::fp32) {
      kernels::softmax_stats(reinterpret_cast<const float*>(slice.logits) + at, slice.rows, maximum + token,
                             sum + token);
    } else {
      kernels::softmax_stats(reinterpret_cast<const std::uint16_t*>(slice.logits) + at, slice.rows, maximum + token,
                             sum + token);
    }
    const auto label = label_in(slice, token);
    if (label < slice.rows) gold[token] = logit_at(slice, token, label);
  });
}

void loss_gradient(const LogitSlice& slice, const float* maximum, const float* log_sum, float scale, Team& team) {
  by_token(slice, team, [&](std::uint64_t token) {
    const auto at = token * slice.rows;
    const kernels::LogSumExp norm{maximum[token], log_sum[token]};
    const auto label = label_in(slice, token);
    if (slice.type == state::ComputeType::fp32) {
      kernels::softmax_gradient(reinterpret_cast<float*>(slice.logits) + at, slice.rows, norm, scale, label);
    } else {
      kernels::softmax_gradient(reinterpret_cast<std::uint16_t*>(slice.logits) + at, slice.rows, norm, scale, label);
    }
  });
}

}  // namespace spillway::execute
