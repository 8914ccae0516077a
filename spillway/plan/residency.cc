#include "spillway/plan/residency.h"

namespace spillway::plan {

using state::BlockRole;

bool has_dense_grad(const Description& description, const state::Layout& layout, Index chunk) {
  const auto& it = layout.chunks()[chunk];
  if (!has_gradient(it.learning)) return false;
  const auto& block = layout.blocks()[it.block];
  return block.role != BlockRole::embedding || description.tied_head;
}

bool can_be_early(const state::Layout& layout, const Residency& residency, Index chunk) {
  const auto& it = layout.chunks()[chunk];
  return has_gradient(it.learning) && layout.blocks()[it.block].role != BlockRole::embedding &&
         residency.weight[chunk] && residency.state[chunk];
}

Index first_backward(const state::Layout& layout) {
  Index layer = 0;
  for (const auto& block : layout.blocks()) {
    if (block.role != BlockRole::head && block.learning_chunks > 0) break;
    layer += block.role == BlockRole::layer ? 1 : 0;
  }
  return layer;
}

std::uint16_t update_unit(const Residency& residency, Index chunk) {
  return residency.node.empty() || !residency.state[chunk] ? std::uint16_t{0} : residency.node[chunk];
}

}  // namespace spillway::plan
