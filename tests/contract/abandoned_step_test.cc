// A step that is abandoned leaves no trace: computed twice, and decided once, it has the bits of a step that is
// computed once, and both computations have the same digests.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/contract/fake_nodes.h"
#include "tests/contract/lives.h"
#include "tests/contract/on_device.h"
#include "tests/contract/outcome.h"
#include "tests/nightly.h"

namespace spillway {
namespace {

using plan::Durability;
using plan::test::describe;
using plan::test::Shape;
using test::Directory;
using test::DurableRun;
using test::Toy;

using Digests = std::map<std::string, std::pair<bool, std::uint64_t>>;  // weights or made, and the value

Digests by_name(const std::vector<StepDigest>& digests) {
  Digests out;
  for (const auto& it : digests) out[it.name] = {it.is_weight, it.value};
  EXPECT_EQ(out.size(), digests.size()) << "two digests have one name";
  return out;
}

/// Computes a step twice, and leaves it to be decided.
void compute_twice(Engine& engine, Toy& toy, std::uint64_t seed) {
  const auto first = by_name(toy.compute_step(seed, true));
  const auto norm = toy.norm();
  engine.abandon_step();
  const auto second = by_name(toy.compute_step(seed, false));
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(first, second);
  EXPECT_EQ(norm, toy.norm());
}

Outcome train_twice(const plan::Description& description, const Settings& settings, bool twice, std::uint64_t steps) {
  test::Training training(description, settings, settings.budget.device.has_value());
  Outcome out;
  for (std::uint64_t s = 0; s < steps; ++s) {
    training.toy.expected = training.toy.update;
    if (!twice || s % 3 == 1) {
      out.norms.push_back(training.toy.step(s).grad_norm);
      continue;
    }
    compute_twice(training.engine, training.toy, s);
    out.norms.push_back(training.engine.end_step(training.toy.update).grad_norm);
    if (s % 4 == 0) training.engine.flush();
    if (s % 5 == 2) training.toy.step(1000 + s, false);
  }
  out.masters = training.toy.masters();
  return out;
}

Settings placed(std::mt19937& random, const Directory& where, bool device) {
  auto out = DurableRun::settings(where.path(), 2, test::random_placement(random), Durability::none);
  out.threads = 1 + random() % 3;
  out.budget.update_schedule = random() % 2 == 0 ? plan::Updates::early : plan::Updates::deferred;
  out.budget.speculative_updates = true;
  if (!device) {
    test::use_fake_nodes(out, random);
    return out;
  }
  out.budget.device = test::tier(random() % 2 == 0 ? 1 : 0.4, 0.7, random() % 2);
  test::delay_copies(out, random());
  return out;
}

class AbandonedStep : public ::testing::TestWithParam<bool> {};

TEST_P(AbandonedStep, LeavesNoTraceWhereverBytesLie) {
  std::mt19937 random(31);
  for (int round = 0; round < testing::few_or(8, 30); ++round) {
    auto shape = plan::test::random_shape(random, round);
    if (round % 4 == 1) shape.frozen = "down|embed";
    if (round % 4 == 2 && shape.layers > 0) shape.subspace = "up|down";
    if (round % 4 == 3) shape.compute = state::ComputeType::fp32;
    const auto description = describe(shape);
    const auto expected = train_twice(description, everything_in_dram(), false, 9);
    const Directory where;
    const auto found = train_twice(description, placed(random, where, GetParam()), true, 9);
    ASSERT_NO_FATAL_FAILURE(expect_same(expected, found, text("round ", round)));
  }
}

INSTANTIATE_TEST_SUITE_P(Computes, AbandonedStep, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "OnADevice" : "OnTheHost"; });

TEST(AbandonedStepOfADurableRun, IsComputedAgainAndGoesOnAfterEachLife) {
  std::mt19937 random(37);
  for (int round = 0; round < testing::few_or(3, 10); ++round) {
    auto shape = plan::test::random_shape(random, round);
    if (round % 3 == 1) shape.subspace = "up";
    const DurableRun run(shape, 12);
    const Directory where;
    for (std::uint64_t done = 0; done < run.steps();) {
      Engine engine(run.description(), DurableRun::settings(where.path(), 1, test::random_placement(random)));
      const auto found = engine.start({.reopen = done > 0});
      ASSERT_EQ(found.step, done);
      if (done == 0) run.fill(engine);
      Toy toy(engine, run.description(), run.description().micro_batches);
      const auto last = std::min<std::uint64_t>(run.steps(), done + 1 + random() % 4);
      while (done < last) {
        compute_twice(engine, toy, ++done);
        engine.end_step(toy.update);
        engine.commit(text("step ", done));
      }
      ASSERT_TRUE(run.holds(engine, done));
      static_cast<void>(toy.compute_step(done + 1, random() % 2 == 0));
      engine.abandon_step();  // nothing of it is there after the life
      engine.close();
    }
  }
}

TEST(AbandonedStepOfADurableRun, WritesItsGradientsOnce) {
  const DurableRun run({.layers = 2, .tokens = 32}, 3);
  const Directory where;
  Engine engine(run.description(), DurableRun::settings(where.path(), 1, {0, 0, 0, 0}));
  engine.start();
  run.fill(engine);
  Toy toy(engine, run.description(), run.description().micro_batches);
  static_cast<void>(toy.compute_step(1, false));
  engine.abandon_step();
  EXPECT_THROW(toy.compute_step(1, false), Error);
  static_cast<void>(toy.compute_step(1, true));
  engine.end_step(toy.update);  // by the gradients that were written
  engine.commit("step 1");
  EXPECT_TRUE(run.holds(engine, 1));
}

TEST(AbandonedStep, MayEndWithoutAnUpdate) {
  const auto description = describe({.layers = 2, .tokens = 32});
  Engine engine(description, everything_in_dram());
  engine.start();
  Toy toy(engine, description, description.micro_batches);
  toy.fill();
  toy.step(1);
  const auto before = toy.masters();
  toy.update.skip = true;
  EXPECT_TRUE(toy.step(2).skipped);
  EXPECT_EQ(toy.masters(), before);
}

TEST(StepDigests, NameTheWeightsThatChangedBetweenTwoComputations) {
  const auto description = describe({.layers = 3, .tokens = 32});
  std::mt19937_64 random(41);
  for (int round = 0; round < testing::few_or(10, 100); ++round) {
    Engine engine(description, everything_in_dram());
    engine.start();
    Toy toy(engine, description, description.micro_batches);
    toy.fill();
    std::byte* weights = nullptr;
    toy.look = [&](const BlockPass& pass) {
      if (pass.kind == plan::PassKind::backward && pass.block == 2) weights = pass.weights;
    };
    const auto first = by_name(toy.compute_step(1, true));
    engine.abandon_step();
    const auto bit = random() % (8 * 2 * 64 * 96);
    weights[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);  // layers stay in memory
    const auto second = by_name(toy.compute_step(1, false));
    std::vector<std::string> changed;
    for (const auto& [name, value] : first) {
      if (value.first && second.at(name) != value) changed.push_back(name);
    }
    ASSERT_EQ(changed.size(), 2U) << "in forward and in backward";
    for (const auto& name : changed) EXPECT_NE(name.find("the weights of layer"), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace spillway
