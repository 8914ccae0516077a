// Several processes train as one does, bit by bit, wherever their parts of the state lie.
#include "tests/contract/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/durable_run.h"
#include "tests/contract/on_device.h"
#include "tests/contract/votes.h"

namespace spillway {
namespace {

using plan::test::describe;
using plan::test::Shape;
using test::World;

void expect_same_in_every_world(const Shape& shape, const std::string& what, const World& like = {}) {
  const auto description = describe(test::shape_of(shape));
  const auto expected = test::train(description, {}, 1).front();
  for (const double norm : expected.norms) ASSERT_GT(norm, 0);
  for (const auto& [size, local] : {std::pair<std::size_t, std::size_t>{1, 1}, {2, 2}, {3, 1}, {4, 1}, {4, 2}}) {
    auto world = like;
    world.size = size;
    world.local = local;
    const auto found = test::train(description, world, static_cast<std::uint32_t>(size + local) * 7);
    for (std::size_t rank = 0; rank < size; ++rank) {
      expect_same(expected, found[rank], text(what, ", rank ", rank, " of ", size, ", ", local, " on each machine"));
    }
  }
}

TEST(Ranks, OfAnyNumberTrainAsOneDoes) {
  expect_same_in_every_world({.layers = 2, .tied = true, .micro_batches = 5}, "tied");
  expect_same_in_every_world({.layers = 2, .tied = false, .micro_batches = 8}, "untied");
  expect_same_in_every_world({.layers = 2, .embedding = false, .head = false, .micro_batches = 4}, "layers alone");
  expect_same_in_every_world({.layers = 1, .tied = true, .micro_batches = 7, .virtual_ranks = 6}, "six virtual ranks");
}

TEST(Ranks, OfAnyNumberTrainAsOneDoesOnPaths) {
  const Shape shape{.layers = 2, .tied = true, .micro_batches = 6};
  expect_same_in_every_world(shape, "half", {.placement = {0.5, 0.5, 0.5, 0.5}, .paths = true, .evaluates = true});
  expect_same_in_every_world(shape, "paths", {.placement = {0, 0, 0, 0}, .paths = true});
  expect_same_in_every_world({.layers = 3, .tied = false, .micro_batches = 4}, "untied, on paths",
                             {.placement = {0, 0, 0, 0}, .paths = true});
}

TEST(Ranks, OfAnyNumberTrainAsOneDoesWhereEachKeepsItsOwnWeights) {
  const Shape tied{.layers = 2, .tied = true, .micro_batches = 5};
  expect_same_in_every_world(tied, "in memory", {.evaluates = true, .own_weights = true});
  expect_same_in_every_world({.layers = 2, .tied = false, .micro_batches = 4, .fp32 = "norm"}, "half",
                             {.placement = {0.5, 0.5, 0.5, 0.5}, .paths = true, .own_weights = true});
  expect_same_in_every_world({.layers = 2, .micro_batches = 4, .frozen = "up"}, "partly frozen",
                             {.evaluates = true, .own_weights = true});
}

TEST(Ranks, OfAnyNumberTrainAsOneDoesOnDevices) {
  const plan::DeviceTier streams{.capacity = GiB, .weight = 0, .activation = 0}, keeps{.capacity = GiB, .weight = 1};
  const Shape tied{.layers = 2, .tied = true, .micro_batches = 5};
  expect_same_in_every_world(tied, "weights pass", {.evaluates = true, .device = streams});
  expect_same_in_every_world(tied, "weights stay", {.evaluates = true, .own_weights = true, .device = keeps});
  expect_same_in_every_world({.layers = 2, .tied = false, .micro_batches = 4, .frozen = "up", .fp32 = "norm"}, "half",
                             {.placement = {0.5, 0.5, 0.5, 0.5}, .paths = true, .device = keeps});
  expect_same_in_every_world(
      {.layers = 2, .micro_batches = 5, .subspace = "up|down", .checks = {.check_every = 100, .rotate_every = 2}},
      "subspaces", {.placement = {0.5, 0, 0, 0}, .paths = true, .device = streams});
}

/// Blocks live there with the state of each process's shards, or come for the update, in every mixture.
TEST(Ranks, OfAnyNumberTrainAsOneDoesWithStatesOnDevices) {
  const Shape untied{.layers = 2, .tied = false, .micro_batches = 5};
  const auto device = [](std::optional<double> weight, double state, double updated) {
    return plan::DeviceTier{.capacity = GiB, .weight = weight, .state = state, .device_updated = updated};
  };
  const auto is_there = [](const Engine& engine, bool after) {
    if (after) return;
    const auto& tasks = engine.plan().schedule.tasks;
    EXPECT_TRUE(std::ranges::any_of(tasks, [](const auto& it) { return it.lane == plan::Lane::device_update; }));
  };
  expect_same_in_every_world(untied, "all live there",
                             {.evaluates = true, .device = device(0, 1, 0), .tell = is_there});
  expect_same_in_every_world(untied, "all pass", {.evaluates = true, .device = device(0, 0, 1), .tell = is_there});
  expect_same_in_every_world(untied, "half live there, copies stay",
                             {.evaluates = true, .own_weights = true, .device = device(1, 0.5, 1), .tell = is_there});
  expect_same_in_every_world(
      untied, "half live there, all else on paths",
      {.placement = {0, 0, 0, 0}, .paths = true, .evaluates = true, .device = device(0.5, 0.5, 1)});
  expect_same_in_every_world(
      {.layers = 2, .micro_batches = 5, .subspace = "up|down", .checks = {.check_every = 100, .rotate_every = 2}},
      "subspaces", {.placement = {0.5, 0, 0, 0}, .paths = true, .device = device(0, 0.5, 1), .tell = is_there});
  const Shape experts{.layers = 2, .micro_batches = 5, .experts = 4};  // frozen objects of layers that train
  expect_same_in_every_world(experts, "all live there beside experts", {.device = device(0, 1, 0), .tell = is_there});
  expect_same_in_every_world(experts, "half live there beside experts",
                             {.own_weights = true, .device = device(1, 0.5, 0), .tell = is_there});
}

/// Each frozen chunk is one process's, too, and comes to the passes of the others from there.
TEST(Ranks, OfAnyNumberTrainAsOneDoesWhereEachKeepsAShareOfWhatIsFrozen) {
  const Shape adapted{
      .layers = 2, .micro_batches = 4, .frozen = "up|down|embed|head", .packed = "up|down", .shard_frozen = true};
  const auto rule = describe(test::shape_of(adapted)).rule();
  const auto has_a_share = [&](const Engine& engine, bool after) {
    const auto& schedule = engine.plan().schedule;
    if (after || schedule.network.empty()) return;
    Bytes kept = 0, all = 0;
    for (const auto& it : schedule.buffers) kept += it.kind == plan::BufferClass::weight ? it.bytes : 0;
    for (const auto& chunk : engine.layout().chunks()) all += weight_bytes(rule, chunk);
    EXPECT_LT(kept, all * 3 / 4);
  };
  auto experts = adapted;
  experts.experts = 3;
  auto asked = experts;
  asked.asked = 0.5;
  asked.shard_frozen = false;
  expect_same_in_every_world(adapted, "codes in memory", {.evaluates = true, .tell = has_a_share});
  expect_same_in_every_world(experts, "some experts in memory", {.placement = {0.4, 0, 0, 0}, .paths = true});
  expect_same_in_every_world(adapted, "codes on paths", {.placement = {0, 0, 0, 0}, .paths = true, .evaluates = true});
  expect_same_in_every_world(
      {.layers = 2, .tied = false, .micro_batches = 4, .frozen = "down|embed", .fp32 = "norm", .shard_frozen = true},
      "half on paths", {.placement = {0.5, 0.5, 0.5, 0.5}, .paths = true});
  const plan::DeviceTier streams{.capacity = GiB, .weight = 0, .activation = 0}, keeps{.capacity = GiB, .weight = 1};
  expect_same_in_every_world(adapted, "they pass over a device", {.evaluates = true, .device = streams});
  expect_same_in_every_world(adapted, "copies stay on a device", {.evaluates = true, .device = keeps});
  expect_same_in_every_world(asked, "experts come when they are asked for",
                             {.placement = {0.4, 0, 0, 0}, .paths = true, .evaluates = true, .device = streams});
  const plan::DeviceTier some{.capacity = GiB, .weight = 0.4};
  expect_same_in_every_world(experts, "copies of some experts stay on a device", {.evaluates = true, .device = some});
  expect_same_in_every_world({.layers = 2, .micro_batches = 5, .frozen = "up", .shard_frozen = true},
                             "they live on devices", {.evaluates = true, .device = test::tier(1)});
}

/// Each has all that is frozen on its device, beside its shards of the rest.
TEST(Ranks, OfAnyNumberTrainWhatIsPartlyFrozenOnDevices) {
  const auto is_there = [](const Engine& engine, bool) {
    const auto& chunks = engine.layout().chunks();
    EXPECT_TRUE(std::ranges::any_of(chunks, [&](const auto& it) {
      return !is_trainable(it.training) && engine.plan().placement[it.id].device_resident();
    }));
  };
  expect_same_in_every_world({.layers = 2, .micro_batches = 5, .frozen = "up"}, "all live there",
                             {.evaluates = true, .device = test::tier(1), .tell = is_there});
  expect_same_in_every_world(
      {.layers = 2, .micro_batches = 4, .frozen = "up|down|embed|head", .packed = "up|down"}, "norms beside codes",
      {.placement = {0.5, 0, 0, 0}, .paths = true, .device = test::tier(0.7, 1), .tell = is_there});
  expect_same_in_every_world({.layers = 2, .tied = false, .micro_batches = 4, .frozen = "down|embed"}, "all pass",
                             {.placement = {0.5, 0.5, 0.5, 0.5},
                              .paths = true,
                              .evaluates = true,
                              .own_weights = true,
                              .device = plan::DeviceTier{.capacity = GiB, .state = 0, .device_updated = 1}});
  expect_same_in_every_world({.layers = 2, .micro_batches = 5, .frozen = "norm", .subspace = "up|down"}, "subspaces",
                             {.device = test::tier(1), .tell = is_there});
}

/// One is lost in the middle of a step, and all of them go on, with other blocks on their devices.
void expect_to_go_on_after_one_was_lost(const Shape& shape, const std::vector<std::size_t>& sizes) {
  constexpr std::uint64_t kSteps = 5;
  const auto description = describe(test::shape_of(shape));
  const auto train_on = [](Engine& engine, const plan::Description& own, std::uint64_t first, std::uint64_t last) {
    test::Rank rank(engine, own);
    for (auto s = first; s <= last; ++s) {
      rank.step(s, own.micro_batches);
      engine.commit(text("step ", s));
    }
    return rank.masters();
  };
  Outcome expected;
  {
    Engine engine(test::for_rank(description, 0, 1), everything_in_dram());
    engine.start();
    test::Rank(engine, description).fill();
    expected.masters = train_on(engine, test::for_rank(description, 0, 1), 1, kSteps);
  }
  for (const auto size : sizes) {
    const std::vector<test::Directory> directories(size);
    const auto life = [&](const plan::DeviceTier& device, const auto& body) {
      network::FakeNetwork network(size, static_cast<std::uint32_t>(size));
      test::Count count(size);
      test::each_rank(network, size, [&](std::size_t rank) {
        const auto own = test::for_rank(description, rank, size);
        auto settings = test::DurableRun::settings(directories[rank].path(), 1, {0.5, 0.5, 0.5, 1});
        settings.budget.device = device;
        test::delay_copies(settings, size * 10 + rank);
        if (size > 1) settings.network = test::port_of(network, rank);
        Engine engine(own, std::move(settings));
        const test::Voter votes(engine, count);
        try {
          body(engine, own);
        } catch (...) {
          count.lose();
          network.lose(rank);
          throw;
        }
      });
    };
    const auto first = [&](Engine& engine, const plan::Description& own) {
      engine.start({.line = size > 1 ? size : 0});
      test::Rank(engine, own).fill();
      engine.commit("step 0");
      train_on(engine, own, 1, 3);
      if (own.world.rank + 1 == size) throw Error(ErrorCode::internal, "lost");
      train_on(engine, own, 4, 4);
      engine.flush();
    };
    EXPECT_THROW(life(test::tier(1), first), Error);
    std::vector<Outcome> found(size);
    std::atomic<std::int64_t> newest = kSteps;
    std::vector<DurableStep> durable(size);
    life(test::tier(0.5, 1),
         [&](Engine& engine, const plan::Description& own) { durable[own.world.rank] = engine.durable_step(); });
    for (const auto& it : durable) newest = std::min<std::int64_t>(newest, it.step);
    EXPECT_GE(newest, 2);
    life(test::tier(0.5, 1), [&](Engine& engine, const plan::Description& own) {
      const auto& line = durable[own.world.rank].line;
      const auto at = engine.start({.reopen = true, .at_most = newest, .line = line});
      EXPECT_EQ(at.step, static_cast<std::uint64_t>(newest));
      found[own.world.rank].masters = train_on(engine, own, at.step + 1, kSteps);
    });
    for (const auto& it : found) expect_same(expected, it, text("a world of ", size));
  }
}

TEST(Ranks, WithStatesOnDevicesGoOnAfterOneWasLost) {
  expect_to_go_on_after_one_was_lost({.layers = 2, .tied = false, .micro_batches = 4}, {1, 2, 4});
  expect_to_go_on_after_one_was_lost({.layers = 2, .micro_batches = 4, .frozen = "up|embed"}, {2});
  expect_to_go_on_after_one_was_lost({.layers = 2, .micro_batches = 4, .frozen = "up|embed", .shard_frozen = true},
                                     {2});
}

TEST(Ranks, OfAnyNumberTrainAsOneDoesOnNodes) {
  std::atomic<std::size_t> distributed = 0;
  const auto is_used = [&](const Engine& engine, bool after) {
    EXPECT_GT(engine.plan().node_peaks.back(), 0U);
    const auto& chunks = engine.plan().placement.chunks;
    distributed += std::ranges::any_of(chunks, [](const auto& it) { return it.node() > 0; }) ? 1 : 0;
    if (after) {
      EXPECT_EQ(engine.where().value().elsewhere, std::vector<std::uint64_t>());
    }
  };
  const Shape tied{.layers = 2, .tied = true, .micro_batches = 5};
  const std::vector<double> rates{4e8, 1e8, 2e8};
  expect_same_in_every_world(tied, "all weights", {.evaluates = true, .nodes = rates, .tell = is_used});
  expect_same_in_every_world({.layers = 2, .tied = false, .micro_batches = 4, .fp32 = "norm"}, "weights by owner",
                             {.own_weights = true, .nodes = rates, .tell = is_used});
  expect_same_in_every_world(
      {.layers = 2, .micro_batches = 4, .frozen = "up"}, "half, and a file",
      {.placement = {0.5, 0.5, 0.5, 0.5}, .paths = true, .nodes = {1e8, 1e8}, .file = true, .tell = is_used});
  EXPECT_GT(distributed, 10U);
}

TEST(Ranks, OfAnyNumberTrainEveryStateFormatAndType) {
  const World on_paths{.placement = {0.5, 0, 0, 0}, .paths = true};
  for (const auto format : {state::StateFormat::exact, state::StateFormat::bf16, state::StateFormat::int8}) {
    expect_same_in_every_world({.layers = 1, .micro_batches = 4, .format = format}, "format", on_paths);
  }
  expect_same_in_every_world({.layers = 1, .micro_batches = 4, .fp32 = "norm"}, "norms in fp32", on_paths);
  expect_same_in_every_world({.layers = 1, .micro_batches = 4, .type = state::ComputeType::fp32}, "fp32", on_paths);
}

TEST(Ranks, OfAnyNumberTrainWhatIsPartlyFrozen) {
  expect_same_in_every_world({.layers = 2, .micro_batches = 4, .frozen = "up|down|embed|head"}, "norms alone",
                             {.placement = {0.5, 0, 0, 0}, .paths = true, .evaluates = true});
  expect_same_in_every_world({.layers = 2, .tied = false, .micro_batches = 4, .frozen = "embed"}, "embedding frozen");
}

TEST(Ranks, OfAnyNumberTrainBesideFrozenCodes) {
  Shape shape{.layers = 2, .micro_batches = 4, .frozen = "up|down|embed|head", .packed = "up|down"};
  for (const auto form : {state::Form::nf4, state::Form::int8, state::Form::nf4_nested}) {
    shape.packed_as = form;
    expect_same_in_every_world(shape, text(word_of(form)), {.placement = {0.5, 0, 0, 0}, .paths = true});
  }
}

TEST(Ranks, OfAnyNumberUpdateWholeMatrices) {
  const Shape shape{.layers = 2, .micro_batches = 5, .optimizer = &optim::muon};
  expect_same_in_every_world(shape, "on paths", {.placement = {0.5, 0, 0, 0}, .paths = true, .evaluates = true});
  expect_same_in_every_world(shape, "weights by owner", {.own_weights = true});
}

TEST(Ranks, OfAnyNumberTrainInSubspaces) {
  auto shape = Shape{.layers = 2, .micro_batches = 5, .subspace = "up|down"};
  expect_same_in_every_world(shape, "in memory");
  shape.checks = {.check_every = 100, .rotate_every = 2};
  for (const bool own : {false, true}) {
    expect_same_in_every_world(shape, "in turn", {.placement = {1, 0.5, 0, 1}, .paths = true, .own_weights = own});
  }
  shape.format = state::StateFormat::int8;
  expect_same_in_every_world(shape, "on paths", {.placement = {0.5, 0, 0, 0}, .paths = true, .evaluates = true});
}

/// The process of the first virtual rank looks at gradients, and all others are told.
TEST(Ranks, OfAnyNumberTrainInPublishedSubspaces) {
  auto shape = Shape{.layers = 2, .micro_batches = 5, .subspace = "up|down", .published = true};
  shape.checks = {.check_every = 1, .threshold = 1.2};  // some pairs stay, and others do not
  expect_same_in_every_world(shape, "in memory");
  const plan::DeviceTier streams{.capacity = GiB, .weight = 0, .activation = 0};
  expect_same_in_every_world(shape, "on a device", {.placement = {0.5, 0, 0, 0}, .paths = true, .device = streams});
  expect_same_in_every_world(shape, "live on a device", {.device = test::tier(1)});
}

}  // namespace
}  // namespace spillway
