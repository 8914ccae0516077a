// Files that are mapped as memory never change a bit of the result: beside paths, durable, ended by a kill, and gone on
// with in another directory.
#include <gtest/gtest.h>

#include <random>

#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/contract/fake_nodes.h"
#include "tests/contract/outcome.h"
#include "tests/contract/toy.h"
#include "tests/nightly.h"
#include "tests/plan/models.h"

namespace spillway {
namespace {

using plan::test::describe;
using test::Directory;
using test::DurableRun;

/// DRAM and a file in `directory`, which update equally fast.
void add_file(Settings& settings, const std::filesystem::path& directory) {
  test::use_fake_nodes(settings, {1e8, 1e8});
  settings.budget.nodes = {{.kind = plan::NodeKind::dram},
                           {.id = 0, .capacity = 256 * MiB, .kind = plan::NodeKind::file}};
  settings.nodes[1].backing = memory::in_file(directory);
}

std::vector<float> trained(const plan::Description& description, Engine& engine) {
  engine.start();
  test::Toy toy(engine, description, description.micro_batches);
  toy.fill();
  for (std::uint64_t s = 0; s < 5; ++s) toy.step(s);
  return toy.masters();
}

TEST(MemoryFile, ChangesNoBit) {
  std::mt19937 random(47);
  std::uniform_real_distribution<> share(0, 1);
  std::size_t used = 0;
  const auto rounds = spillway::testing::few_or(6, 12);
  for (int round = 0; round < rounds; ++round) {
    const auto description = describe(plan::test::random_shape(random, round));
    Engine plain(description, everything_in_dram());
    const auto expected = trained(description, plain);
    const Directory where, storage;
    auto settings = everything_in_dram();
    add_file(settings, where.path());
    settings.budget.streams_weights = random() % 2 == 0;
    if (round % 2 == 1) {
      settings.storage.places.push_back({storage.path()});
      settings.budget.paths.push_back({.capacity = 1 * GiB});
      settings.budget.placement = {share(random), share(random), share(random), share(random)};
    }
    Engine engine(description, settings);
    EXPECT_EQ(trained(description, engine), expected) << "round " << round;
    used += engine.plan().node_peaks[1] > 0 ? 1 : 0;
    const auto file = engine.where().value().nodes.at("file:0");
    EXPECT_EQ(file.there, file.planned);
    EXPECT_LE(file.in_memory, file.planned);
    EXPECT_TRUE(std::filesystem::is_empty(where.path())) << "its file has a name";
  }
  EXPECT_GT(used, static_cast<std::size_t>(rounds) / 2)
      << "next to nothing was distributed: the test has shown nothing";
}

TEST(MemoryFile, OfADurableRunIsGoneAndTheRunGoesOn) {
  const DurableRun run({.layers = 2, .tied = false, .tokens = 32}, 9);
  const Directory storage;
  auto settings = DurableRun::settings(storage.path(), 1, {1, 1, 1, 1});
  const auto begin = [&](std::uint64_t last, bool more) {
    const Directory where;
    add_file(settings, where.path());
    Engine engine(run.description(), settings);
    EXPECT_GT(engine.plan().node_peaks[1], 0U);
    if (!more) {
      engine.start();
      run.fill(engine);
      run.train(engine, 1, last);
      return engine.close();
    }
    const auto found = engine.start({.reopen = true});
    EXPECT_TRUE(found.has_step && run.holds(engine, found.step));
    run.train(engine, found.step + 1, last);
    EXPECT_TRUE(run.holds(engine, last));
    engine.close();
  };
  begin(4, false);
  begin(7, true);
  settings.budget.nodes.clear();
  settings.rates.nodes.clear();
  settings.nodes.clear();
  Engine engine(run.description(), settings);
  const auto found = engine.start({.reopen = true});
  EXPECT_TRUE(found.has_step && run.holds(engine, found.step)) << "in DRAM alone";
  run.train(engine, found.step + 1, 9);
  EXPECT_TRUE(run.holds(engine, 9));
}

TEST(MemoryFile, WithoutRoomIsRefusedBeforeTheFirstStep) {
  const auto description = describe({.layers = 2, .tokens = 32});
  auto settings = everything_in_dram();
  const Directory where;
  add_file(settings, where.path() / "none");
  Engine engine(description, settings);
  EXPECT_THROW(engine.start(), Error);
}

}  // namespace
}  // namespace spillway
