// Several NUMA nodes never change a bit of the result, and what is distributed to one lies there.
#include "spillway/sys/nodes.h"

#include <gtest/gtest.h>

#include <random>
#include <span>

#include "spillway/memory/pages.h"
#include "spillway/sys/numa.h"
#include "tests/contract/directory.h"
#include "tests/contract/fake_nodes.h"
#include "tests/contract/outcome.h"
#include "tests/contract/toy.h"
#include "tests/needs.h"
#include "tests/nightly.h"
#include "tests/plan/models.h"

namespace spillway {
namespace {

using plan::test::describe;
using test::Directory;

constexpr int kStepsOnNodes = 6;

std::vector<float> train_on_nodes(Engine& engine, const plan::Description& description) {
  test::Toy toy(engine, description, description.micro_batches);
  toy.fill();
  for (int s = 0; s < kStepsOnNodes; ++s) toy.step(static_cast<std::uint64_t>(s));
  return toy.masters();
}

std::vector<float> train_on_nodes(const plan::Description& description, const Settings& settings) {
  Engine engine(description, settings);
  engine.start();
  return train_on_nodes(engine, description);
}

/// Nodes that the engine's chunks are distributed to.
std::size_t nodes_used(const Engine& engine) {
  std::size_t out = 0;
  for (const auto peak : engine.plan().node_peaks) out += peak > 0 ? 1 : 0;
  return out;
}

/// Gradients and boundary activations that lie on later nodes.
std::size_t aside_of(const Engine& engine) {
  const auto& buffers = engine.plan().schedule.buffers;
  return static_cast<std::size_t>(std::ranges::count_if(buffers, [](const auto& it) { return it.node > 0; }));
}

TEST(Nodes, ChangeNoBit) {
  std::mt19937 random(31);
  std::uniform_real_distribution<> share(0, 1);
  const auto rounds = spillway::testing::few_or(8, 16);
  std::size_t several = 0, aside = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto description = describe(plan::test::random_shape(random, round));
    const auto expected = train_on_nodes(description, everything_in_dram());
    for (int policy = 0; policy < 4; ++policy) {
      const Directory directory;
      auto settings = everything_in_dram();
      test::use_fake_nodes(settings, random);
      settings.budget.streams_weights = random() % 2 == 0;
      if (policy % 2 == 1) {
        settings.storage.places.push_back({directory.path()});
        settings.budget.paths.push_back({.capacity = 1 * GiB});
        settings.budget.placement = {share(random), share(random), share(random), share(random)};
        test::place_aside(settings, random);
      }
      Engine engine(description, settings);
      engine.start();
      several += nodes_used(engine) > 1 ? 1 : 0;
      aside += aside_of(engine) > 0 ? 1 : 0;
      EXPECT_EQ(train_on_nodes(engine, description), expected) << "round " << round << " policy " << policy;
    }
  }
  EXPECT_GT(several, static_cast<std::size_t>(rounds)) << "next to nothing was distributed: the test has shown nothing";
  EXPECT_GT(aside, static_cast<std::size_t>(rounds) / 2) << "next to nothing lay aside: the test has shown nothing";
}

TEST(Nodes, ALaneThatIsHeldDownChangesNoBit) {
  const auto description = describe({.layers = 2, .tokens = 32});
  auto settings = everything_in_dram();
  test::use_fake_nodes(settings, {4e8, 1e8});
  settings.nodes[1].limit = 1e8;
  EXPECT_EQ(train_on_nodes(description, settings), train_on_nodes(description, everything_in_dram()));
}

TEST(Nodes, UpdatesAreCountedByNode) {
  std::mt19937 random(31);
  std::size_t several = 0;
  for (int round = 0; round < 24; ++round) {
    const auto description = describe(plan::test::random_shape(random, round));
    auto settings = everything_in_dram();
    test::use_fake_nodes(settings, random);
    Engine engine(description, settings);
    engine.start();
    train_on_nodes(engine, description);
    engine.flush();
    const auto told = engine.counters().updates;
    std::uint64_t elements = 0, nodes = 0;
    for (const auto& [name, done] : told) {
      elements += done.elements;
      nodes += done.elements > 0 ? 1 : 0;
      EXPECT_EQ(done.elements > 0, done.seconds > 0) << name;
    }
    std::uint64_t a_step = 0;  // chunks are updated with their padding
    for (const auto task : engine.plan().schedule.update_task) {
      if (task != plan::kNone) a_step += engine.plan().schedule.tasks[task].bytes;
    }
    EXPECT_GE(a_step, engine.layout().trainable_parameters());
    EXPECT_EQ(elements, kStepsOnNodes * a_step);
    several += nodes > 1 ? 1 : 0;
  }
  EXPECT_GT(several, 2U);
}

/// The nodes of this machine that a process may put memory on.
std::vector<sys::Node> usable_nodes() {
  std::vector<sys::Node> out;
  for (const auto& node : sys::nodes()) {
    if (node.has_memory() && node.allowed) out.push_back(node);
  }
  return out;
}

/// Whether every page of `bytes` bytes at `memory` lies on node `id`, as the kernel says.
::testing::AssertionResult lies_on(const std::byte* memory, Bytes bytes, unsigned id) {
  for (const auto& part : memory::where({memory, bytes})) {
    if (part.node != static_cast<int>(id)) {
      return ::testing::AssertionFailure() << part.bytes << " of " << bytes << " bytes on node " << part.node;
    }
  }
  return ::testing::AssertionSuccess();
}

TEST(Nodes, OfTheMachineHoldWhatThePlanSays) {
  const auto machine = usable_nodes();
  SPILLWAY_NEEDS(nodes, machine.size() >= 2, "this machine has one NUMA node; `make numa` has three");
  SPILLWAY_NEEDS(numa, sys::numa_refusal().empty(), sys::numa_refusal());
  const auto description = describe({.layers = 6, .hidden = 128, .ffn = 256, .tied = false, .chunk_elements = 1 << 14});
  const auto expected = train_on_nodes(description, everything_in_dram());
  auto settings = everything_in_dram();
  test::use_fake_nodes(settings, std::vector<double>(machine.size(), 1e8));
  for (std::size_t n = 0; n < machine.size(); ++n) {
    settings.nodes[n].backing.reset();
    settings.budget.nodes[n].id = static_cast<unsigned>(machine[n].id);
    settings.budget.nodes[n].capacity = 256 * MiB;
  }
  settings.budget.dram = 256 * MiB * machine.size();
  settings.budget.placement.grad_on = 1;
  settings.budget.placement.activation_on = static_cast<std::uint16_t>(machine.size() - 1);
  Engine engine(description, settings);
  engine.start();
  EXPECT_EQ(nodes_used(engine), machine.size());
  EXPECT_EQ(train_on_nodes(engine, description), expected);
  EXPECT_EQ(engine.where().value().elsewhere, std::vector<std::uint64_t>());
  const auto& plan = engine.plan();
  const auto& schedule = plan.schedule;
  const auto* arena = engine.memory().data();
  for (std::size_t c = 0; c < engine.layout().chunks().size(); ++c) {
    const auto& chunk = engine.layout().chunks()[c];
    const auto id = settings.budget.nodes[plan.placement[c].node()].id;
    const auto* weight =
        arena + schedule.buffers[schedule.groups[c].weight.buffer].offset + schedule.groups[c].weight.offset;
    const auto* state = arena + schedule.buffers[schedule.resident_state[c]].offset;
    EXPECT_TRUE(lies_on(weight, weight_bytes(description.rule(), chunk), id)) << "weight of chunk " << c;
    EXPECT_TRUE(lies_on(state, state_bytes(description.rule(), chunk), id)) << "state of chunk " << c;
  }
  std::size_t boundaries = 0, gradients = 0;
  for (const auto& buffer : schedule.buffers) {
    if (buffer.node == 0) continue;
    EXPECT_TRUE(lies_on(arena + buffer.offset, buffer.bytes, settings.budget.nodes[buffer.node].id));
    (buffer.kind == plan::BufferClass::activation ? boundaries : gradients) += 1;
  }
  EXPECT_EQ(boundaries, 7U) << "of each layer and the norm its input, which backward starts from";
  EXPECT_GE(gradients, 6U);
  const auto aside = engine.where().value().aside.at("activation");
  EXPECT_EQ(aside.buffers, 7U);
  EXPECT_EQ(aside.elsewhere, 0U);
}

TEST(Nodes, ThatCannotHoldTheirPartAreRefusedAndTheProcessLives) {
  const auto machine = usable_nodes();
  SPILLWAY_NEEDS(nodes, machine.size() >= 2, "this machine has one NUMA node; `make numa` has three");
  SPILLWAY_NEEDS(numa, sys::numa_refusal().empty(), sys::numa_refusal());
  const auto& last = machine.back();
  const auto elements = last.available / 12 + 32 * MiB;  // of which the state alone is more than the node has
  const auto description = describe({.layers = 1,
                                     .hidden = 4096,
                                     .ffn = static_cast<std::int64_t>(elements / 2 / 4096),
                                     .embedding = false,
                                     .head = false,
                                     .tokens = 1,
                                     .micro_batches = 1,
                                     .chunk_elements = 1 << 22});
  Settings settings;
  settings.budget.dram = 64 * GiB;
  test::use_fake_nodes(settings, {1e8});
  settings.nodes[0].backing.reset();
  settings.budget.nodes[0].id = static_cast<unsigned>(last.id);
  try {
    Engine(description, settings).start();
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit) << error.what();
    EXPECT_NE(std::string(error.what()).find(text("node ", last.id)), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace spillway
