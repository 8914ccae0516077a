// Cross entropy over slices of the vocabulary, row by row over the team.
#pragma once

#include <cstdint>

#include "spillway/execute/team.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

/// One slice of logits: [tokens, rows] contiguous, of the compute type.
struct LogitSlice {
  state::ComputeType type = state::ComputeType::bf16;
  std::byte* logits = nullptr;
  std::uint64_t tokens = 0, rows = 0;
  std::uint64_t first_row = 0;           ///< of the slice in the vocabulary
  const std::int64_t* labels = nullptr;  ///< [tokens], rows of the whole vocabulary
};

/// Pass 1: folds the slice into the running maximum and sum of exponentials; notes the label's logit when it is here.
void loss_stats(const LogitSlice& slice, float* maximum, float* sum, float* gold, Team& team);
/// Pass 2: logits become d loss / d logits times scale.
void loss_gradient(const LogitSlice& slice, const float* maximum, const float* log_sum, float scale, Team& team);

}  // namespace spillway::execute
