// Random placements for the planner's tests.
#pragma once

#include <random>
#include <vector>

#include "spillway/plan/residency.h"

namespace spillway::plan::test {

/// Layers by block, tables by slice; of every other one old versions stay, too.
inline Residency random_residency(const state::Layout& layout, std::mt19937& random) {
  std::bernoulli_distribution coin(std::uniform_real_distribution<>(0, 1)(random));
  const auto chunks = layout.chunks().size();
  Residency out{std::vector<bool>(chunks), std::vector<bool>(chunks), std::vector<bool>(chunks), {}};
  for (const auto& block : layout.blocks()) {
    const bool weight = coin(random), grad = coin(random);
    for (std::size_t i = block.first_chunk; i < block.first_chunk + block.chunks; ++i) {
      const bool layer = block.role == state::BlockRole::layer;
      out.weight[i] = layer ? weight : coin(random);
      out.grad[i] = layer ? grad : coin(random);
      out.state[i] = coin(random);
    }
    if (block.role == state::BlockRole::layer) out.activation.push_back(coin(random));
  }
  const auto undo = random() % 2 == 0 ? chunks : 0;
  for (std::size_t c = 0; c < undo; ++c) out.undo.push_back(coin(random));
  return out;
}

/// Weight, state and gradient of `chunk` are in the device's memory.
inline void live_there(Residency& residency, DeviceResidency& device, std::size_t chunk) {
  device.weight[chunk] = device.state[chunk] = true;
  residency.weight[chunk] = residency.state[chunk] = residency.grad[chunk] = true;
}

/// `chunk` comes to the device for its update; its gradient stays there, or comes, too.
inline void let_pass(Residency& residency, DeviceResidency& device, std::size_t chunk, bool gradient) {
  device.passing[chunk] = true;
  if (gradient) device.grad[chunk] = residency.grad[chunk] = true;
}

inline Residency random_device_residency(const Description& description, const state::Layout& layout,
                                         std::mt19937& random) {
  Residency out;
  const auto chunks = layout.chunks().size();
  for (auto* flags : {&out.weight, &out.state, &out.grad}) flags->assign(chunks, false);
  const std::vector<bool> none(chunks, false);
  DeviceResidency device{none, {}, none, none, none};
  for (const auto& block : layout.blocks()) {
    const bool layer = block.role == state::BlockRole::layer;
    const bool weight = random() % 2 == 0, grad = random() % 2 == 0, there = random() % 3 == 0;
    const bool lives = random() % 3 == 0, passes = random() % 2 == 0, gradient = random() % 2 == 0;
    for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
      out.weight[c] = layer ? weight : random() % 2 == 0;
      out.grad[c] = layer ? grad : random() % 2 == 0;
      out.state[c] = random() % 2 == 0;
      device.weight[c] = layer ? there : random() % 3 == 0;
      if (!can_be_on_device(description, layout, static_cast<Index>(c))) continue;
      if (lives) live_there(out, device, c);
      if (!lives && passes && learns(layout.chunks()[c].learning)) let_pass(out, device, c, gradient);
    }
    if (layer) {
      out.activation.push_back(random() % 2 == 0);
      device.activation.push_back(random() % 2 == 0);
    }
  }
  out.device = device;
  return out;
}

}  // namespace spillway::plan::test
