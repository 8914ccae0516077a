// The optimizer's moments when a matrix changes its projectors (arXiv 2406.10181, section 3.4).
//
// With A = P'ᵀ P and B = Q'ᵀ Q, a first moment M becomes A M Bᵀ, what of it lies in the new space, and a second moment
// V becomes A∘² V B∘²ᵀ, with element-wise squares: never negative. Rows of A∘² add up to at most 1; what is missing is
// variance that the old space knew nothing of. `fill` adds the mean of V for it: measured, and worse
//, since a mean is that of the few largest. The published code zeroes both moments and lets the
// count of steps run on.
//
// A and B of block projectors are blocks of r x r, since groups are the same. Those of scattered ones are sparse.
#pragma once

#include <span>

#include "spillway/subspace/refit.h"

namespace spillway::subspace {

/// In place; [d, d] each. Both pairs are of one shape and kind. `fill`: of blocks alone.
void carry_first(const Projectors& before, const Projectors& after, std::span<float> moment);
void carry_second(const Projectors& before, const Projectors& after, std::span<float> moment, bool fill = false);

}  // namespace spillway::subspace
