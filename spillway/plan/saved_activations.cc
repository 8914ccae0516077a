#include "spillway/plan/saved_activations.h"

#include <algorithm>
#include <cmath>

namespace spillway::plan {
namespace {

/// Blocks that can keep and have a backward pass.
std::vector<Index> able_blocks(const state::Layout& layout, const SavedActivations& saved) {
  std::vector<Index> out;
  const auto lowest = first_backward(layout);
  Index layer = 0;
  for (Index b = 0; b < layout.blocks().size(); ++b) {
    if (layout.blocks()[b].role != state::BlockRole::layer) continue;
    if (layer++ >= lowest && std::ranges::find(saved.blocks, b) != saved.blocks.end()) out.push_back(b);
  }
  return out;
}

}  // namespace

std::vector<Index> keeping_blocks(const state::Layout& layout, const SavedActivations& saved, std::size_t layers) {
  auto out = able_blocks(layout, saved);
  if (layers < out.size()) out.erase(out.begin(), out.end() - static_cast<std::ptrdiff_t>(layers));
  return out;
}

std::size_t most_keeping(const state::Layout& layout, const SavedActivations& saved) {
  return able_blocks(layout, saved).size();
}

Bytes saved_bytes(const Description& description, const SavedActivations& saved, std::size_t layers) {
  return layers * static_cast<Bytes>(std::ceil(saved.token_bytes * static_cast<double>(description.tokens)));
}

Budget with_saved(const Description& description, const Budget& budget, std::size_t layers) {
  auto out = budget;
  const auto bytes = saved_bytes(description, budget.saved, layers);
  (budget.saved.on_device && out.device ? out.device->work : out.work) += bytes;
  return out;
}

void set_saved(Schedule& schedule, std::span<const Index> blocks) {
  for (auto& pass : schedule.passes) {
    const bool layer = pass.kind == PassKind::forward || pass.kind == PassKind::backward;
    if (layer && std::ranges::find(blocks, pass.block) != blocks.end()) pass.saved = Saved::keep;
  }
}

}  // namespace spillway::plan
