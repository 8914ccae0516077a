#include "spillway/execute/loss.h"

#include <algorithm>

#include "spillway/execute/compute.h"

namespace spillway::execute {
namespace {

constexpr std::uint64_t kTokensPerTile = 16;

std::byte* logits_of(const LogitSlice& slice, std::uint64_t token) {
  return slice.logits + token * slice.rows * state::field_bytes(slice.type).weight;
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
    softmax_stats(slice.type, logits_of(slice, token), slice.rows, maximum + token, sum + token);
    const auto label = label_in(slice, token);
    if (label < slice.rows) gold[token] = value_at(slice.type, logits_of(slice, token), label);
  });
}

void loss_gradient(const LogitSlice& slice, const float* maximum, const float* log_sum, float scale, Team& team) {
  by_token(slice, team, [&](std::uint64_t token) {
    const kernels::LogSumExp norm{maximum[token], log_sum[token]};
    const auto label = label_in(slice, token);
    softmax_gradient(slice.type, logits_of(slice, token), slice.rows, norm, scale, label);
  });
}

}  // namespace spillway::execute
