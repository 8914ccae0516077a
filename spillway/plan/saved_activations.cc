#include "spillway/plan/saved_activations.h"

#include <algorithm>
#include <cmath>

namespace spillway::plan {
namespace {

/// Blocks that can keep and have a backward pass.
std::vector<Index> able_blocks(const state::Layout& layout, const SavedActivations& saved) {
  std::vector<Index> out;
  const auto& layers = layout.layers();
  for (auto i = first_backward(layout); i < layers.size(); ++i) {
    const auto block = static_cast<Index>(layers[i]);
    if (std::ranges::find(saved.blocks, block) != saved.blocks.end()) out.push_back(block);
  }
  return out;
}

}  // namespace

std::vector<Index> keeping_blocks(const state::Layout& layout, const SavedActivations& saved, std::size_t layers) {
  auto out = able_blocks(layout, saved);
  if (layers < out.size()) out.erase(out.begin(), out.end() - static_cast<std::ptrdiff_t>(layers));
  return out;
}

std::vector<Index> spilling_blocks(const state::Layout& layout, const SavedActivations& saved,
                                   const SavedLayers& layers) {
  auto rest = able_blocks(layout, saved);
  rest.resize(rest.size() - std::min(rest.size(), layers.keep));
  const auto count = std::min(rest.size(), layers.spill);
  std::vector<Index> out;
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i) out.push_back(rest[i * rest.size() / count]);
  return out;
}

std::size_t most_keeping(const state::Layout& layout, const SavedActivations& saved) {
  return able_blocks(layout, saved).size();
}

Bytes saved_bytes(const Description& description, const SavedActivations& saved, std::size_t layers) {
  return layers * static_cast<Bytes>(std::ceil(saved.token_bytes * static_cast<double>(description.tokens)));
}

Bytes held_bytes(const Description& description, const SavedActivations& saved, const SavedLayers& layers) {
  const auto graph = static_cast<Bytes>(std::ceil(saved.graph_token_bytes * static_cast<double>(description.tokens)));
  return saved_bytes(description, saved, layers.keep) + layers.spill * graph;
}

Bytes spilled_bytes(const Description& description, const SavedActivations& saved) {
  const auto bytes = std::ceil(saved.spilled_token_bytes * static_cast<double>(description.tokens));
  return round_up(static_cast<Bytes>(bytes), 4096);
}

SavedPlacement saved_placement(const Description& description, const state::Layout& layout,
                               const SavedActivations& saved, const SavedLayers& layers) {
  SavedPlacement out;
  if (layers.keep + layers.spill == 0) return out;
  out.blocks.assign(layout.blocks().size(), Saved::recompute);
  for (const auto block : keeping_blocks(layout, saved, layers.keep)) out.blocks[block] = Saved::keep;
  for (const auto block : spilling_blocks(layout, saved, layers)) out.blocks[block] = Saved::spill;
  out.spilled = layers.spill > 0 ? spilled_bytes(description, saved) : 0;
  out.home = layers.home;
  return out;
}

}  // namespace spillway::plan
