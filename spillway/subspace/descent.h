// Learning the values of scattered projectors P [m, d] and Q [n, d] for a gradient G [m, n], as published: descent on
//
//   |P Pᵀ G Q Qᵀ − G| / |G| + beta (|P| + |Q|)
//
// over the values alone; places stay (arXiv 2406.10181, section 3.3). The released code of its experiments has AdamW of
// rate 0.1 for that, 100 steps for each gradient, and AdamW's decay of 0.01 in place of beta
// (github.com/gulang2019/LSP-Offload, simluation/lspoffload/compressor/count_sketch.py). So has this by default.
//
// With X = G Q, Y = Gᵀ P, S = Pᵀ X and the difference R = P S Qᵀ − G, |R|² falls fastest along
// −2 ((R Q) Sᵀ + X (Pᵀ R Q)ᵀ) for P, and Q's is the same turned. R Q = P (S Qᵀ Q) − X, so neither R nor a product of
// d x d by d x d is made: a step takes about 2 m n r operations and some of (m + n) d r.
#pragma once

#include <span>

#include "spillway/optim/lsp.h"
#include "spillway/subspace/projector.h"

namespace spillway::subspace {

struct DescentOptions {
  int steps = optim::kDescentSteps;
  double rate = 0.1;    ///< of AdamW, with moments of 0.9 and 0.999
  double decay = 0.01;  ///< AdamW's
  double penalty = 0;   ///< beta
};

/// |P Pᵀ G Q Qᵀ − G| / |G|; 0 where G is 0. `gradient` is [m, n], row-major. Throws Error(bad_input) when it is of
/// another size or not finite.
[[nodiscard]] double missed_share(const Projectors& pair, std::span<const float> gradient);

/// Moves the values from those that are there. None moves for a gradient of 0. Throws as missed_share(); the
/// pair is then unchanged. Allocates 2 m n + 4 (m + n) d floats. The same bits for the same values.
void descend(Projectors& pair, std::span<const float> gradient, const DescentOptions& options = {});

}  // namespace spillway::subspace
