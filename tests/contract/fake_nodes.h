// NUMA nodes that this machine need not have: distributed to, with a lane each, but mapped wherever the kernel likes.
#pragma once

#include <algorithm>
#include <optional>
#include <random>

#include "spillway/engine.h"

namespace spillway::test {

/// `count` nodes that update at these rates; all of them hold everything.
inline void use_fake_nodes(Settings& settings, const std::vector<double>& rates) {
  settings.budget.nodes.clear();
  settings.rates.nodes.clear();
  settings.nodes.assign(rates.size(), {.backing = memory::anywhere()});
  for (std::size_t n = 0; n < rates.size(); ++n) {
    settings.budget.nodes.push_back({.id = static_cast<unsigned>(2 * n), .capacity = settings.budget.dram});
    settings.rates.nodes.push_back({.update = rates[n], .update_thread = rates[n]});
  }
}

/// Gradients and boundary activations that stay in memory lie on any of the nodes that hold everything, or where the
/// planner puts them.
inline void place_aside(Settings& settings, std::mt19937& random) {
  const auto& nodes = settings.budget.nodes;
  const auto any = [&]() -> std::optional<std::uint16_t> {
    const auto n = random() % (nodes.size() + 1);
    if (n == nodes.size() || nodes[n].capacity < settings.budget.dram) return std::nullopt;
    return static_cast<std::uint16_t>(n);
  };
  settings.budget.placement.grad_on = any();
  settings.budget.placement.activation_on = any();
}

/// One to four nodes of any rates, of which the later ones may be small; or none.
inline void use_fake_nodes(Settings& settings, std::mt19937& random) {
  std::vector<double> rates(random() % 5);
  for (auto& rate : rates) rate = 1e8 * static_cast<double>(1 + random() % 4);
  use_fake_nodes(settings, rates);
  for (std::size_t n = 0; n < rates.size(); ++n) {
    if (n > 0 && random() % 2 == 0) settings.budget.nodes[n].capacity = (9 + random() % 8) * MiB;
    settings.rates.nodes[n].threads = 1 + random() % 2;
  }
  place_aside(settings, random);
}

}  // namespace spillway::test
