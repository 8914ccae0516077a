// Moments from one form to another, for states that are loaded into a run of another format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "spillway/kernels/update.h"

namespace spillway::state {

/// Moments of a run of elements as they lie in memory or in files.
struct MomentSpan {
  kernels::Moments kept = kernels::Moments::fp32;
  std::size_t moment = 0;  ///< 0: exp_avg, which may be negative; 1: exp_avg_sq, which may not
  std::byte* values = nullptr;
  float* scales = nullptr;  ///< int8: of the block of the first element, and on
};

/// To fp32, exactly. int8: `first` is where in its block of kernels::kQuantBlock the first element lies.
void to_fp32(const MomentSpan& from, std::uint64_t first, std::span<float> out);
/// From fp32: bf16 to nearest, ties to even; int8 as an update rounds. int8: the first element starts a block.
void from_fp32(std::span<const float> values, const MomentSpan& to);

}  // namespace spillway::state
