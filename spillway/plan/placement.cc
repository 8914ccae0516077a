#include "spillway/plan/placement.h"

#include <algorithm>
#include <iterator>

namespace spillway::plan {
namespace {

/// A device has kernels for matrices in subspaces where weights are of the first type alone.
bool has_device_update(const state::UpdateRule& rule, const state::Chunk& chunk) {
  return !chunk.reduced.any() || rule_of(rule, chunk).type == state::UpdateRule().type;
}

/// The ranges of each block whose passes read weights where they compute: of layers and heads.
template <class Ranges>
std::vector<Range> list_ranges(const Description& description, const state::Layout& layout, const Ranges& ranges_of) {
  std::vector<Range> out;
  for (const auto& block : layout.blocks()) {
    if (traits(block.role).is_table && !description.is_head(block)) continue;
    std::ranges::copy(ranges_of(block), std::back_inserter(out));
  }
  return out;
}

}  // namespace

void ChunkPlacement::live_on_device(bool gradient_too) noexcept {
  for (auto* it : {&weight, &state}) it->move_to({TierKind::device});
  gradient.move_to(gradient_too ? TierId{TierKind::device} : TierId{});
  updated_on = TierKind::device;
}

Placement::Placement(const state::Layout& layout)
    : chunks(layout.chunks().size()), boundaries(layout.layers().size()) {}

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
  return !traits(block.role).is_gathered || description.tied_head;
}

bool can_be_early(const state::Layout& layout, const Placement& placement, Index chunk) {
  const auto& it = layout.chunks()[chunk];
  return has_gradient(it.training) && !traits(layout.blocks()[it.block].role).is_gathered &&
         placement[chunk].weight.in_memory() && placement[chunk].state.in_memory() &&
         !placement[chunk].updated_there() && !placement[chunk].takes_change();
}

void keep_own_weights(const Description& description, const state::Layout& layout, Placement& placement, bool on_host) {
  for (const auto& block : layout.blocks()) {
    const bool frozen = block.trainable_chunks != block.chunks;
    if (frozen && !description.shard_frozen) continue;
    for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
      auto& weight = placement.chunks[c].weight;
      if (frozen || on_host || weight.on_device()) weight.owner = Owner::one;
    }
  }
}

std::vector<Range> pass_ranges(const state::Block& block, std::size_t chunks) {
  std::vector<Range> out;
  for (std::size_t i = 0; i < chunks; i += block.pass_chunks) {
    out.push_back({static_cast<Index>(block.first_chunk + i), static_cast<Index>(std::min(block.pass_chunks, chunks))});
  }
  return out;
}

std::vector<Range> weight_objects(const state::Layout& layout, const state::Block& block) {
  std::vector<Range> out;
  for (const auto& pass : pass_ranges(block, block.chunks)) {
    for (auto c = pass.first; c < pass.end(); ++c) {
      const bool begins = c == pass.first || layout.chunks()[c].object != layout.chunks()[c - 1].object;
      begins ? out.push_back({c, 1}) : static_cast<void>(++out.back().count);
    }
  }
  return out;
}

std::vector<Range> weights_of_passes(const Description& description, const state::Layout& layout) {
  return list_ranges(description, layout, [](const state::Block& block) { return pass_ranges(block, block.chunks); });
}

std::vector<Range> objects_of_passes(const Description& description, const state::Layout& layout) {
  return list_ranges(description, layout, [&](const state::Block& block) { return weight_objects(layout, block); });
}

std::string no_device_update(const state::UpdateRule& rule) {
  if (rule.optimizer->on_device) return {};
  return text("a device updates adamw, and this run has ", rule.optimizer->name);
}

bool can_be_on_device(const Description& description, const state::Layout& layout, Index chunk) {
  const auto rule = description.rule();
  const auto& block = layout.blocks()[layout.chunks()[chunk].block];
  if (traits(block.role).is_gathered || block.trainable_chunks == 0) return false;
  if (!no_device_update(rule).empty()) return false;
  const auto first = layout.chunks().begin() + static_cast<std::ptrdiff_t>(block.first_chunk);
  return std::all_of(first, first + static_cast<std::ptrdiff_t>(block.chunks),
                     [&](const state::Chunk& it) { return has_device_update(rule, it); });
}

bool can_take_change(const Description& description, const state::Layout& layout, Index chunk) {
  const auto& it = layout.chunks()[chunk];
  return it.reduced.any() && state::is_trainable(it.training) && has_device_update(description.rule(), it) &&
         !description.is_shared();
}

Index first_backward(const state::Layout& layout) {
  Index layer = 0;
  for (const auto& block : layout.blocks()) {
    if (block.trainable_chunks > 0) break;
    layer += traits(block.role).is_table ? 0 : 1;
  }
  return layer;
}

bool has_features(const Description& description, const state::Layout& layout) {
  return description.feature_bytes > 0 && !layout.layers().empty() && first_backward(layout) == 0;
}

}  // namespace spillway::plan
