#include "spillway/plan/auxiliary_memory.h"

#include <algorithm>

#include "spillway/state/rule.h"

namespace spillway::plan {

Bytes auxiliary_bytes(const state::Layout& layout, std::size_t lanes, unsigned sums) {
  Bytes kept = 0, delta = 0, refit = 0, gradient = 0;
  for (const auto& tensor : layout.tensors()) {
    const auto& it = tensor.reduced;
    if (!it.any()) continue;
    kept += 2 * it.auxiliary_bytes() + sums * it.rows * sizeof(float);
    gradient = std::max(gradient, it.rows * it.columns * sizeof(float));
    delta = std::max(delta, it.elements() * sizeof(float));
    refit = std::max(refit, it.by->refit_work(it));
  }
  return kept + lanes * delta + 2 * refit + kGradientsLeft * gradient;
}

}  // namespace spillway::plan
