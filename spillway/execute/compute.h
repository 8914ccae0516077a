// The factors of a gradient, compressed by projectors, for whichever type the run computes in.
#pragma once

#include <cstddef>

#include "spillway/execute/team.h"
#include "spillway/kernels/project.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

/// kernels::compress() of any number of tokens, shared by the team: out [columns, tokens].
void compress(state::ComputeType type, const kernels::Projector& projector, const std::byte* in, std::size_t in_stride,
              std::size_t tokens, std::byte* out, Team& team);

}  // namespace spillway::execute
