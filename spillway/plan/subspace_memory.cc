#include "spillway/plan/subspace_memory.h"

#include <algorithm>

#include "spillway/state/rule.h"

namespace spillway::plan {
namespace {

/// What subspace::fit() allocates: the gradient times Q, and the Gram matrices of one side's groups in double.
Bytes fit_bytes(const state::Subspace& it) {
  const auto longer = std::max(it.rows, it.columns);
  const auto group = ceil_div(longer, it.rank / it.nonzeros) + 1;
  return it.rows * it.rank * sizeof(float) + longer * group * sizeof(double);
}

}  // namespace

Bytes subspace_bytes(const state::Layout& layout, std::size_t lanes) {
  Bytes kept = 0, delta = 0, fit = 0;
  for (const auto& tensor : layout.tensors()) {
    const auto& it = tensor.subspace;
    if (it.rank == 0) continue;
    kept += 2 * state::pair_fields(it).bytes + it.rows * sizeof(float);
    delta = std::max(delta, it.elements() * sizeof(float));
    fit = std::max(fit, fit_bytes(it));
  }
  return kept + lanes * delta + fit;
}

}  // namespace spillway::plan
