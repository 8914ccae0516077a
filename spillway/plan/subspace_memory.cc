#include "spillway/plan/subspace_memory.h"

#include <algorithm>

#include "spillway/state/rule.h"

namespace spillway::plan {
namespace {

/// What subspace::Fit keeps: the gradient times Q.
Bytes fit_bytes(const state::Subspace& it) {
  return it.rows * it.rank * sizeof(float);
}

}  // namespace

Bytes subspace_bytes(const state::Layout& layout, std::size_t lanes) {
  Bytes kept = 0, delta = 0, fit = 0, gradient = 0;
  for (const auto& tensor : layout.tensors()) {
    const auto& it = tensor.subspace;
    if (it.rank == 0) continue;
    kept += 2 * state::pair_fields(it).bytes + it.rows * sizeof(float);
    gradient = std::max(gradient, it.rows * it.columns * sizeof(float));
    delta = std::max(delta, it.elements() * sizeof(float));
    fit = std::max(fit, fit_bytes(it));
  }
  return kept + lanes * delta + 2 * fit + kGradientsLeft * gradient;
}

}  // namespace spillway::plan
