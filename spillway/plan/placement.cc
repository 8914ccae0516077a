#include "spillway/plan/placement.h"

#include <algorithm>

namespace spillway::plan {

using state::BlockRole;

void ChunkPlacement::live_on_device(bool gradient_too) noexcept {
  weight = state = {TierKind::device};
  gradient = gradient_too ? weight : TierId{};
  updated_on = TierKind::device;
}

Placement::Placement(const state::Layout& layout)
    : chunks(layout.chunks().size()),
      boundaries(static_cast<std::size_t>(std::ranges::count(layout.blocks(), BlockRole::layer, &state::Block::role))) {
}

std::vector<std::uint16_t> Placement::nodes() const {
  std::vector<std::uint16_t> out;
  out.reserve(chunks.size());
  for (const auto& it : chunks) out.push_back(it.node());
  return out;
}

void Placement::set_nodes(const std::vector<std::uint16_t>& nodes) {
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    for (auto* home : {&chunks[c].weight, &chunks[c].state}) {
      if (home->on_host()) home->node = nodes[c];
    }
  }
}

bool has_dense_grad(const Description& description, const state::Layout& layout, Index chunk) {
  const auto& it = layout.chunks()[chunk];
  if (!has_gradient(it.training)) return false;
  const auto& block = layout.blocks()[it.block];
  return block.role != BlockRole::embedding || description.tied_head;
}

bool can_be_early(const state::Layout& layout, const Placement& placement, Index chunk) {
  const auto& it = layout.chunks()[chunk];
  return has_gradient(it.training) && layout.blocks()[it.block].role != BlockRole::embedding &&
         placement[chunk].weight.in_memory() && placement[chunk].state.in_memory() && !placement[chunk].updated_there();
}

bool keeps_own(const state::Layout& layout, const Placement& placement, Index chunk) {
  const auto& block = layout.blocks()[layout.chunks()[chunk].block];
  const auto& home = placement[chunk].weight;
  const bool own = home.on_device() ? placement.shared : placement.own_weights;
  return own && home.in_memory() && block.trainable_chunks == block.chunks;
}

std::vector<Range> weights_of_passes(const Description& description, const state::Layout& layout) {
  std::vector<Range> out;
  for (const auto& block : layout.blocks()) {
    const Range all{static_cast<Index>(block.first_chunk), static_cast<Index>(block.chunks)};
    if (block.role == BlockRole::layer) out.push_back(all);
    for (auto c = all.first; description.is_head(block) && c < all.end(); ++c) out.push_back({c, 1});
  }
  return out;
}

std::string no_device_update(const state::UpdateRule& rule) {
  const state::UpdateRule known;
  if (rule.optimizer->on_device && rule.type == known.type && rule.format == known.format) return {};
  return text("a device updates ", known.optimizer->name, " with ", state::name_of(known.format), " states of ",
              state::name_of(known.type), " weights, and this run has ", rule.optimizer->name, " with ",
              state::name_of(rule.format), " states of ", state::name_of(rule.type), " weights");
}

bool can_be_on_device(const Description& description, const state::Layout& layout, Index chunk) {
  const auto& block = layout.blocks()[layout.chunks()[chunk].block];
  if (block.role == BlockRole::embedding || block.trainable_chunks == 0) return false;
  if (!no_device_update(description.rule()).empty()) return false;
  const auto first = layout.chunks().begin() + static_cast<std::ptrdiff_t>(block.first_chunk);
  return std::none_of(first, first + static_cast<std::ptrdiff_t>(block.chunks), [](const state::Chunk& it) {
    return it.form != state::Form::as_run && is_trainable(it.training);
  });
}

Index first_backward(const state::Layout& layout) {
  Index layer = 0;
  for (const auto& block : layout.blocks()) {
    if (block.role != BlockRole::head && block.trainable_chunks > 0) break;
    layer += block.role == BlockRole::layer ? 1 : 0;
  }
  return layer;
}

}  // namespace spillway::plan
