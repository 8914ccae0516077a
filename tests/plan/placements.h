// Random placements for the planner's tests.
#pragma once

#include <random>
#include <vector>

#include "spillway/plan/placement.h"

namespace spillway::plan::test {

/// Of every chunk and boundary these stay in host memory, and the rest lies on paths.
struct Kept {
  bool weight = true, state = true, gradient = true, boundary = true;
  When when = When::decided;  ///< of all updates
};
inline Placement placement_of(const state::Layout& layout, Kept kept = {}) {
  const auto home = [](bool stays) { return TierId{stays ? TierKind::host : TierKind::storage}; };
  Placement out(layout);
  for (auto& it : out.chunks) {
    it.weight.move_to(home(kept.weight));
    it.state.move_to(home(kept.state));
    it.gradient.move_to(home(kept.gradient));
    it.when = kept.when;
  }
  for (auto& it : out.boundaries) it.move_to(home(kept.boundary));
  return out;
}

/// Layers by block, tables by slice; of every other one updates are early, too.
inline Placement random_placement_of(const state::Layout& layout, std::mt19937& random) {
  std::bernoulli_distribution coin(std::uniform_real_distribution<>(0, 1)(random));
  Placement out(layout);
  Index layer = 0;
  for (const auto& block : layout.blocks()) {
    const bool weight = coin(random), grad = coin(random), layers = block.role == state::BlockRole::layer;
    for (std::size_t i = block.first_chunk; i < block.first_chunk + block.chunks; ++i) {
      auto& it = out.chunks[i];
      if (layers ? weight : coin(random)) it.weight.keep();
      if (layers ? grad : coin(random)) it.gradient.keep();
      if (coin(random)) it.state.keep();
    }
    if (layers && coin(random)) out.boundaries[layer].keep();
    layer += layers ? 1 : 0;
  }
  const auto early = random() % 2 == 0 ? out.chunks.size() : 0;
  for (std::size_t c = 0; c < early; ++c) out.chunks[c].when = coin(random) ? When::early : When::decided;
  return out;
}

/// Of every layer that has a backward pass: it recomputes what autograd saves, keeps it, or spills it.
inline SavedPlacement random_saved(const state::Layout& layout, std::mt19937& random) {
  SavedPlacement out{.blocks = std::vector<Saved>(layout.blocks().size(), Saved::recompute),
                     .spilled = 4096 * (1 + random() % 16)};
  Index layer = 0;
  for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
    if (layout.blocks()[b].role != state::BlockRole::layer) continue;
    if (layer++ >= first_backward(layout)) out.blocks[b] = static_cast<Saved>(random() % 3);
  }
  return out;
}

/// Copies of the block's reduced matrices take changes.
inline void keep_changes(const Description& description, const state::Layout& layout, const state::Block& block,
                         Placement& placement) {
  for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
    auto& it = placement.chunks[c];
    if (it.updated_there() || !can_take_change(description, layout, static_cast<Index>(c))) continue;
    it.state.keep();
    it.state.copies.add(TierKind::device);
  }
}

/// All in host memory, with copies on the device that take the changes of all reduced matrices.
inline Placement changing_placement(const Description& description, const state::Layout& layout) {
  Placement out(layout);
  out.device = true;
  for (auto& it : out.chunks) {
    for (auto* home : {&it.weight, &it.state, &it.gradient}) home->keep();
    it.weight.copies.add(TierKind::device);
  }
  for (const auto& block : layout.blocks()) keep_changes(description, layout, block, out);
  return out;
}

inline Placement random_device_placement(const Description& description, const state::Layout& layout,
                                         std::mt19937& random) {
  Placement out(layout);
  out.device = true;
  const bool shared = description.is_shared();
  Index layers = 0;
  for (const auto& block : layout.blocks()) {
    const bool layer = block.role == state::BlockRole::layer;
    const bool weight = random() % 2 == 0, grad = random() % 2 == 0, there = random() % 3 == 0;
    const bool lives = random() % 3 == 0, comes = random() % 2 == 0, gradient = random() % 2 == 0 && !shared;
    for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
      auto& it = out.chunks[c];
      if (layer ? weight : random() % 2 == 0) it.weight.keep();
      if (layer ? grad : random() % 2 == 0) it.gradient.keep();
      if (random() % 2 == 0) it.state.keep();
      if (layer ? there : random() % 3 == 0) it.weight.copies.add(TierKind::device);
      if (!can_be_on_device(description, layout, static_cast<Index>(c))) continue;
      const auto home = it.gradient;
      if (lives) it.live_on_device(!shared);
      if (lives && shared) it.gradient = home;
      if (lives || !comes || !is_trainable(layout.chunks()[c].training)) continue;
      it.updated_on = TierKind::device;
      if (gradient) it.gradient = {TierKind::device};
    }
    if (layer && there && weight) keep_changes(description, layout, block, out);
    if (!layer) continue;
    if (random() % 2 == 0) out.boundaries[layers].keep();
    if (random() % 2 == 0) out.boundaries[layers].copies.add(TierKind::device);
    ++layers;
  }
  if (shared) keep_own_weights(description, layout, out, false);
  return out;
}

}  // namespace spillway::plan::test
