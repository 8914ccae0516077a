// Processes of a small model in one: what each has planned, and memory for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "spillway/execute/arenas.h"
#include "spillway/execute/run_plan.h"
#include "spillway/network/fake.h"
#include "tests/plan/models.h"

namespace spillway::execute::test {

/// One of them. Its chunks are small, so that every rank has some of each layer.
struct RankPlan {
  RankPlan(std::size_t rank, std::size_t size, network::Port* port = nullptr, std::size_t local = 1)
      : description(describe(rank, size, local)), layout(description.layout()), port_(port) {
    budget.dram = 2 * GiB;
    plan = plan::make_plan(description, layout, budget, rates);
    memory.resize(plan.arena);
  }
  static plan::Description describe(std::size_t rank, std::size_t size, std::size_t local) {
    auto out = plan::test::describe({.layers = 2,
                                     .embedding = false,
                                     .head = false,
                                     .micro_batches = 4,
                                     .chunk_elements = 2048,
                                     .virtual_ranks = size});
    out.world = {.size = size, .rank = rank, .local = local};
    return out;
  }
  [[nodiscard]] RunPlan run_plan() const {
    return {description, layout, ownership, budget, rates, plan, nodes, device, port_};
  }
  /// The pass of this kind over block number `block`.
  [[nodiscard]] const plan::Pass& pass(plan::PassKind kind, plan::Index block) const {
    for (const auto& it : plan.schedule.passes) {
      if (it.kind == kind && it.block == block) return it;
    }
    throw std::logic_error("no such pass");
  }
  [[nodiscard]] std::byte* at(plan::Index buffer) { return Arenas(memory.data()).at(plan.schedule, buffer); }

  plan::Description description;
  state::Layout layout;
  state::Ownership ownership = description.ownership(layout);
  plan::Budget budget;
  plan::Rates rates;
  plan::Plan plan;
  std::vector<NodeOptions> nodes;
  DeviceOptions device;
  std::vector<std::byte> memory;

 private:
  network::Port* port_;
};

}  // namespace spillway::execute::test
