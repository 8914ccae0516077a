#include "spillway/plan/residency.h"

namespace spillway::plan {

using state::BlockRole;

bool has_dense_grad(const Description& description, const state::Layout& layout, Index chunk) {
  const auto& block = layout.blocks()[layout.chunks()[chunk].block];
  return block.role != BlockRole::embedding || description.tied_head;
}

bool can_be_early(const state::Layout& layout, const Residency& residency, Index chunk) {
  return layout.blocks()[layout.chunks()[chunk].block].role != BlockRole::embedding && residency.weight[chunk] &&
         residency.state[chunk];
}

std::uint16_t update_unit(const Residency& residency, Index chunk) {
  return residency.node.empty() || !residency.state[chunk] ? std::uint16_t{0} : residency.node[chunk];
}

}  // namespace spillway::plan
