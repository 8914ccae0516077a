// A run goes on with other numbers of processes, and has the bits of one that was never interrupted. Each process has
// an engine of its own and a thread here.
#include <gtest/gtest.h>

#include <functional>

#include "spillway/network/fake.h"
#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/contract/each_rank.h"
#include "tests/contract/on_device.h"
#include "tests/contract/votes.h"
#include "tests/plan/models.h"
#include "tests/sys/failing.h"

namespace spillway {
namespace {

using plan::test::Shape;
using test::DurableRun;

/// Processes that go on, one world after the other, on a directory for each rank.
class Worlds {
 public:
  using Body = std::function<void(Engine&, std::size_t rank)>;

  Worlds(const DurableRun& run, const plan::PlacementShares& placement,
         plan::Durability durability = plan::Durability::step, std::optional<plan::DeviceTier> device = {})
      : run_(run), placement_(placement), durability_(durability), device_(device) {
    for (std::size_t rank = 0; rank < 4; ++rank) std::filesystem::create_directory(place(rank).parent_path());
  }

  [[nodiscard]] std::filesystem::path place(std::size_t rank) const {
    return directory_.path() / text("drive", rank) / "0";
  }
  [[nodiscard]] std::filesystem::path volume(std::size_t rank, std::size_t size) const {
    return StoragePlace{place(rank)}.file({size, rank});
  }

  void run(std::size_t size, const Body& body) {
    network::FakeNetwork network(size, static_cast<std::uint32_t>(size));
    test::Count count(size);
    test::each_rank(network, size, [&](std::size_t rank) { process(network, count, {size, rank}, body); });
  }

  /// What was committed last becomes durable.
  void keep(Engine& engine) const {
    engine.flush();
    if (durability_ == plan::Durability::checkpoint) {
      EXPECT_TRUE(engine.leave("").empty());
    }
  }

  /// So many processes that were killed, or ended, go on from the step.
  void reopen(std::size_t size, std::uint64_t step) {
    run(size, [&](Engine& engine, std::size_t rank) {
      const auto found = engine.durable_step();
      EXPECT_EQ(found.step, step);
      engine.start({.reopen = true, .at_most = found.step, .line = found.line});
      EXPECT_TRUE(run_.holds(engine, step)) << "rank " << rank << " of " << size << ", opened again";
    });
  }

  /// From so many processes, which are gone, to others.
  void redeal(std::size_t old, std::size_t size, std::uint64_t step) {
    run(size, [&](Engine& engine, std::size_t rank) {
      RedealOptions options{.step = static_cast<std::int64_t>(step), .readers = {}, .places = {}};
      for (std::size_t shard = 0; shard < old; ++shard) {
        options.readers.push_back(shard % size);
        options.places.push_back({{place(shard)}});
        if (options.readers.back() != rank) continue;
        const auto found = engine.durable_step({{old, shard}, {{place(shard)}}});
        EXPECT_EQ(found.step, step);
        EXPECT_EQ(found.line, old > 1 ? old : 0);
      }
      engine.start({.line = size > 1 ? size : 0});
      const auto found = engine.redeal(options);
      EXPECT_TRUE(found.has_step);
      EXPECT_EQ(found.step, step);
      EXPECT_EQ(found.payload, text("step ", step));
      engine.commit(found.payload);
      keep(engine);
      EXPECT_TRUE(run_.holds(engine, step)) << "rank " << rank << " of " << size;
    });
    for (std::size_t shard = 0; shard < old; ++shard) std::filesystem::remove(volume(shard, old));
  }

 private:
  void process(network::FakeNetwork& network, test::Count& count, const state::World& world, const Body& body) {
    auto description = run_.description();
    description.world = world;
    auto settings = DurableRun::settings(directory_.path() / text("drive", world.rank), 1, placement_, durability_);
    settings.budget.checkpoints = 1;
    settings.budget.device = device_;
    if (device_) test::delay_copies(settings, 7 * world.size + world.rank);
    if (world.size > 1) settings.network = {std::shared_ptr<void>{}, &network.port(world.rank)};
    Engine engine(description, settings);
    const test::Voter votes(engine, count);
    body(engine, world.rank);
  }

  const DurableRun& run_;
  const plan::PlacementShares placement_;
  const plan::Durability durability_;
  const std::optional<plan::DeviceTier> device_;
  const test::Directory directory_;
};

void expect_same_after(const Shape& shape, const plan::PlacementShares& placement,
                       const std::vector<std::size_t>& sizes, plan::Durability durability = plan::Durability::step,
                       std::optional<plan::DeviceTier> device = {}) {
  const DurableRun run(shape, 5);
  Worlds worlds(run, placement, durability, device);
  worlds.run(1, [&](Engine& engine, std::size_t) {
    engine.start();
    run.fill(engine);
    engine.commit("step 0");
    run.train(engine, 1, 3);
    worlds.keep(engine);
  });
  std::size_t old = 1;
  for (const auto size : sizes) {
    worlds.redeal(old, size, 3);
    if (durability == plan::Durability::checkpoint) worlds.reopen(size, 3);
    old = size;
  }
  ASSERT_EQ(old, 1U);
  worlds.run(1, [&](Engine& engine, std::size_t) {
    EXPECT_EQ(engine.start({.reopen = true}).step, 3U);
    run.train(engine, 4, 5);
    EXPECT_TRUE(run.holds(engine, 5));
  });
}

Shape of_four(Shape shape) {
  shape.layers = 2;
  shape.chunk_elements = 2048;
  shape.micro_batches = 4;
  shape.virtual_ranks = 4;
  return shape;
}

TEST(RedealContract, AnyNumberGoesOnWithTheSameBits) {
  expect_same_after(of_four({}), {0.5, 0.5, 0.5, 0.5}, {2, 1});
  expect_same_after(of_four({.tied = false}), {0, 0, 0, 0}, {4, 3, 1});
}

TEST(RedealContract, TheLastCheckpointGoesOnWithTheSameBits) {
  expect_same_after(of_four({}), {0.5, 0.5, 0.5, 0.5}, {2, 1}, plan::Durability::checkpoint);
  expect_same_after(of_four({.tied = false}), {0, 0, 0, 0}, {3, 1}, plan::Durability::checkpoint);
}

TEST(RedealContract, StatesOnDevicesGoOnWithTheSameBits) {
  expect_same_after(of_four({.tied = false}), {0.5, 0.5, 0.5, 1}, {2, 1}, plan::Durability::step, test::tier(0.5, 1));
  expect_same_after(of_four({.frozen = "up|embed", .packed = "up"}), {0.5, 0.5, 0.5, 1}, {2, 1, 2, 1},
                    plan::Durability::step, test::tier(0.7));
}

TEST(RedealContract, EveryFormatGoesOnWithTheSameBits) {
  for (const auto format : {state::StateFormat::bf16, state::StateFormat::int8}) {
    expect_same_after(of_four({.format = format}), {0.5, 0, 0, 0}, {2, 1});
  }
  expect_same_after(of_four({.frozen = "up|down|embed|head"}), {0.5, 0, 0, 0}, {3, 1});
  expect_same_after(of_four({.type = state::ComputeType::fp32}), {0, 0, 0, 0}, {3, 1});
}

TEST(RedealContract, SharesOfWhatIsFrozenGoOnWithTheSameBits) {
  expect_same_after(of_four({.frozen = "up|embed", .packed = "up", .shard_frozen = true}), {0.5, 0, 0, 0},
                    {2, 1, 3, 1});
  expect_same_after(of_four({.frozen = "up|down|embed|head", .shard_frozen = true}), {0, 0, 0, 0}, {3, 1});
}

TEST(RedealContract, MatricesThatAreWholeGoOnWithTheSameBits) {
  expect_same_after(of_four({.optimizer = &optim::muon}), {0.5, 0, 0, 0}, {3, 1});
  expect_same_after(of_four({.subspace = "up|down"}), {0.5, 0, 0, 0}, {3, 1});
}

TEST(RedealContract, ADamagedShardEndsAllAndTheOldOnesStay) {
  const DurableRun run(of_four({}), 1);
  Worlds worlds(run, {0, 0, 0, 0});
  worlds.run(1, [&](Engine& engine, std::size_t) {
    engine.start();
    run.fill(engine);
    engine.commit("step 0");
    engine.flush();
  });
  const RedealOptions options{.step = 0, .readers = {0}, .places = {{{worlds.place(3)}}}};  // there is nothing
  EXPECT_ERROR(worlds.run(2,
                          [&](Engine& engine, std::size_t) {
                            engine.start({.line = 1});
                            engine.redeal(options);
                          }),
               ErrorCode::bad_input, "holds nothing of the run");
  EXPECT_TRUE(std::filesystem::exists(worlds.volume(0, 1)));
}

}  // namespace
}  // namespace spillway
