// A small model, planned: for tests of what a run is made of. And steps of it, whose gradients say little.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "spillway/execute/journal_objects.h"
#include "spillway/execute/run.h"
#include "spillway/storage/superblock.h"
#include "tests/contract/directory.h"
#include "tests/plan/models.h"

namespace spillway::execute::test {

/// Three layers and a norm, without a table.
inline plan::test::Shape layers() {
  return {.layers = 3, .embedding = false, .head = false, .tied = false, .tokens = 16};
}

struct PlanOptions {
  plan::test::Shape shape = layers();
  plan::PlacementShares placement = {0, 0, 0, 0};
  plan::Durability durability = plan::Durability::step;
  std::size_t paths = 1;
  bool device = false;      ///< a simulated one
  bool early = false;       ///< chunks that stay in memory are updated during backward
  state::World world = {};  ///< of at most `shape.virtual_ranks` processes; the plan is that of a world of one
};

class Planned {
 public:
  explicit Planned(const PlanOptions& options = {})
      : description(plan::test::describe(options.shape)),
        layout(description.layout()),
        ownership(layout, options.world) {
    budget.dram = 2 * GiB;
    budget.placement = options.placement;
    budget.durability = options.durability;
    budget.checkpoints = 1;
    if (options.early) budget.update_schedule = plan::Updates::early;
    budget.clipping = !options.early;
    if (options.device) budget.device = {.capacity = 1 * GiB, .weight = 0, .activation = 0};
    device.simulated.memory = 1 * GiB;
    settings_.run = "a run";
    settings_.keep = true;
    settings_.world = options.world;
    for (std::size_t p = 0; p < options.paths; ++p) {
      const auto directory = where_.path() / std::to_string(p);
      std::filesystem::create_directory(directory);
      settings_.places.push_back({directory});
      budget.paths.push_back({.name = text("path:", p), .capacity = 1 * GiB});
    }
    if (options.paths > 0) {
      const auto spec = journal_spec(description, layout, plan::Durability::step, settings_.run, options.paths);
      budget.superblock = storage::kSuperblockExtent;
      budget.records = journal::MetadataLayout(spec).bytes();
    }
    plan = plan::make_plan(description, layout, budget, rates);
  }

  [[nodiscard]] RunPlan run_plan() const {
    return {description, layout, ownership, budget, rates, plan, nodes, device};
  }
  [[nodiscard]] VolumeSettings volumes(bool keep = true) const {
    auto out = settings_;
    out.keep = keep;
    return out;
  }
  [[nodiscard]] std::filesystem::path volume(std::size_t path = 0) const {
    return settings_.places[path].file(settings_.world);
  }
  [[nodiscard]] const std::filesystem::path& where() const { return where_.path(); }

  plan::Description description;
  state::Layout layout;
  state::Ownership ownership;
  plan::Budget budget;
  plan::Rates rates;
  plan::Plan plan;
  std::vector<NodeOptions> nodes;
  DeviceOptions device;

 private:
  const spillway::test::Directory where_;
  VolumeSettings settings_;
};

/// Other values for each tensor.
inline void fill(Run& run, const Planned& planned) {
  for (std::size_t t = 0; t < planned.layout.tensors().size(); ++t) {
    std::vector<float> values(planned.layout.tensors()[t].elements);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((t * 31 + i) % 17) * 0.01F - 0.05F;
    run.store(t, 0, values);
  }
}

inline std::vector<float> masters(Run& run, const Planned& planned) {
  std::vector<float> out;
  for (std::size_t t = 0; t < planned.layout.tensors().size(); ++t) {
    std::vector<float> values(planned.layout.tensors()[t].elements);
    run.fetch(t, 0, values);
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

/// Every element of every gradient is 0.5 in bf16, or infinite.
inline void give_gradients(Step& step, const Planned& planned, const BlockPass& pass, bool finite = true) {
  const auto& block = planned.layout.blocks()[pass.block];
  const std::uint16_t value = finite ? 0x3f00 : 0x7f80;
  for (std::size_t t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
    const std::vector<std::uint16_t> values(planned.layout.tensors()[t].elements, value);
    for (std::uint64_t m = 0; m < planned.description.micro_batches; ++m) {
      step.gradients().layer(t, reinterpret_cast<const std::byte*>(values.data()), m);
    }
  }
}

inline StepBegin whole_step(const Planned& planned, bool training = true) {
  const auto each = planned.description.tokens / planned.description.micro_batches;
  return {.ids = {},
          .counts = std::vector<std::uint64_t>(planned.description.micro_batches, each),
          .training = training,
          .update = std::nullopt};
}

inline void run_passes(Step& step, const Planned& planned, bool finite = true) {
  while (const auto pass = step.next_pass()) {
    if (pass->kind == plan::PassKind::backward) give_gradients(step, planned, *pass, finite);
    step.end_pass();
  }
}

inline const StepUpdate kUpdate{.learning_rate = 0.01, .weight_decay = 0.1, .max_grad_norm = 1};

inline StepResult train_step(Run& run, const Planned& planned, bool finite = true) {
  run.step().begin(whole_step(planned));
  run_passes(run.step(), planned, finite);
  return run.step().end(kUpdate);
}

}  // namespace spillway::execute::test
