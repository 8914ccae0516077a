// The kernels that touch gradients and logits, for whichever type the run computes in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spillway/execute/team.h"
#include "spillway/kernels/gradient.h"
#include "spillway/kernels/project.h"
#include "spillway/kernels/softmax.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

// As kernels::copy_norm and its like; `in`, `out` and `logits` are of `type`.

kernels::Norm copy_norm(state::ComputeType type, const std::byte* in, std::byte* out, std::size_t n);
kernels::Norm round_norm(state::ComputeType type, const float* in, std::byte* out, std::size_t n);
void widen(state::ComputeType type, const std::byte* in, float* sum, std::size_t n);
void add(state::ComputeType type, const std::byte* in, float* sum, std::size_t n);
void softmax_stats(state::ComputeType type, const std::byte* logits, std::size_t n, float* maximum, float* sum);
void softmax_gradient(state::ComputeType type, std::byte* logits, std::size_t n, kernels::LogSumExp norm, float scale,
                      std::size_t label);
/// The value of one element.
float value_at(state::ComputeType type, const std::byte* values, std::size_t index);
/// kernels::compress() of any number of tokens, shared by the team: out [columns, tokens].
void compress(state::ComputeType type, const kernels::Projector& projector, const std::byte* in, std::size_t in_stride,
              std::size_t tokens, std::byte* out, Team& team);

}  // namespace spillway::execute
