// Blocks that live on a device, weight, state and update, and blocks whose state comes for the update and goes back:
// the bits of plain memory, through steps that are skipped, evaluations, checkpoints, kills, and with any other
// placement before and after.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/contract/on_device.h"
#include "tests/nightly.h"

namespace spillway {
namespace {

using plan::test::describe;
using test::Directory;
using test::DurableRun;
using test::tier;
using test::with_device;

/// Every fourth step has a gradient that is not finite, every third is followed by an evaluation or two.
Outcome train_resident(const plan::Description& description, Settings settings, bool queued) {
  test::Training training(description, std::move(settings), queued);
  auto& toy = training.toy;
  Outcome out;
  for (std::uint64_t s = 0; s < 7; ++s) {
    toy.poison(s % 4 == 3);
    const auto ended = toy.step(s);
    EXPECT_EQ(ended.skipped, s % 4 == 3);
    out.norms.push_back(ended.skipped ? -1 : ended.grad_norm);
    if (s % 3 == 1) toy.step(1000 + s, false);
    if (s % 3 == 1) toy.step(2000 + s, false);
  }
  out.masters = toy.masters();
  return out;
}

std::size_t resident_chunks(const plan::Plan& plan) {
  return static_cast<std::size_t>(std::ranges::count_if(plan.placement.chunks, &plan::ChunkPlacement::device_resident));
}

TEST(DeviceState, ChangesNoBit) {
  std::mt19937 random(41);
  const char* wanted = std::getenv("SPILLWAY_DEVICE_SEEDS");
  const auto rounds = wanted == nullptr ? spillway::testing::few_or(20, 40) : std::atoi(wanted);
  for (int round = 0; round < rounds; ++round) {
    auto shape = plan::test::random_shape(random, round);
    shape.layers = 2;
    shape.hidden = 16;
    shape.ffn = 24;
    shape.vocabulary = 60;
    shape.chunk_elements = random() % 2 == 0 ? 512 : 8192;
    if (round % 5 == 2) shape.fp32 = "norm";
    if (round % 4 == 1) shape.frozen = plan::test::kFrozenParts[random() % 3];
    shape.format = static_cast<state::StateFormat>(round % 3);
    if (round % 7 == 6) shape.type = round % 2 == 0 ? state::ComputeType::fp32 : state::ComputeType::fp16;
    const auto description = describe(shape);
    const bool queued = random() % 3 != 0;
    const auto expected = train_resident(description, everything_in_dram(), false);
    const auto third = [&] { return static_cast<double>(random() % 3) / 2; };
    auto settings = with_device(tier(random() % 3 == 0 ? 1 : 0.5), random() % 4 == 0 ? 0 : random());
    if (round % 2 == 1) settings.budget.device = tier(third() / 2, 1 - third() / 2, third());
    if (round % 4 == 3) settings.budget.device->weight = third();
    const Directory directory;
    if (round % 6 == 5) {  // what comes has passed through staging, from a path
      settings.storage.places.push_back({directory.path()});
      settings.budget.paths.push_back({.capacity = 1 * GiB});
      settings.budget.durability = random() % 2 == 0 ? plan::Durability::none : plan::Durability::step;
      settings.budget.placement = {third(), third(), third(), third()};
    }
    settings.threads = 1 + random() % 3;
    settings.budget.window = random() % 4;
    settings.device.simulated.registers = random() % 4 != 0;
    expect_same(expected, train_resident(description, settings, queued),
                text("round ", round, queued ? " queued" : ""));
  }
}

class DeviceStateOf : public ::testing::TestWithParam<plan::test::Shape> {};

TEST_P(DeviceStateOf, AllThatCanDoLiveThere) {
  const auto description = describe(GetParam());
  const Engine all(description, with_device(tier(1), 0)), none(description, with_device(tier(0), 0));
  const auto& layout = all.layout();
  std::size_t elsewhere = 0;
  for (const auto& block : layout.blocks()) {
    if (block.role == state::BlockRole::embedding) elsewhere += block.chunks;
  }
  EXPECT_EQ(resident_chunks(all.plan()), layout.chunks().size() - elsewhere);
  EXPECT_EQ(resident_chunks(none.plan()), 0U);
  EXPECT_LT(all.plan().arena, none.plan().arena);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, DeviceStateOf,
    ::testing::Values(plan::test::Shape{.tied = false, .tokens = 32},
                      plan::test::Shape{.tied = false, .tokens = 32, .format = state::StateFormat::int8},
                      plan::test::Shape{.tied = false, .tokens = 32, .fp32 = "norm"},
                      plan::test::Shape{.tied = false, .tokens = 32, .type = state::ComputeType::fp16}));

/// Bytes of a block that lives there follow the format: weight, remainder and gradient, and what the moments take.
TEST(DeviceState, ABlockTakesTheBytesOfItsFormat) {
  const auto bytes_of = [](state::StateFormat format) {
    const Engine engine(describe({.layers = 8, .tied = false, .tokens = 32, .format = format}),
                        with_device(tier(1), 0));
    EXPECT_GT(resident_chunks(engine.plan()), 0U);
    return engine.plan().device_peak;
  };
  const Engine all(describe({.layers = 8, .tied = false, .tokens = 32}), with_device(tier(1), 0));
  Bytes parameters = 0;
  for (const auto& chunk : all.layout().chunks()) {
    if (all.plan().placement[chunk.id].device_resident()) parameters += chunk.elements;
  }
  const auto exact = bytes_of(state::StateFormat::exact), bf16 = bytes_of(state::StateFormat::bf16),
             int8 = bytes_of(state::StateFormat::int8);
  const Bytes rounding = all.layout().chunks().size() * 4096;  // of each state group
  EXPECT_NEAR(static_cast<double>(exact - bf16), static_cast<double>(4 * parameters), static_cast<double>(rounding));
  EXPECT_NEAR(static_cast<double>(exact - int8), static_cast<double>(6 * parameters),
              static_cast<double>(2 * rounding));
}

TEST(DeviceState, StatesThatPassLieOnTheHost) {
  const auto description = describe({.layers = 3, .tied = false, .tokens = 32});
  const Engine all(description, with_device(tier(0, 1), 0)), none(description, with_device(tier(0), 0));
  const auto& plan = all.plan();
  std::size_t updated = 0, trainable = 0;
  for (const auto& task : plan.schedule.tasks) {
    if (task.op == plan::Op::update) ++(task.lane == plan::Lane::device_update ? updated : trainable);
  }
  EXPECT_EQ(trainable, all.layout().blocks().front().chunks);  // the table's
  EXPECT_EQ(updated + trainable, all.layout().chunks().size());
  EXPECT_EQ(resident_chunks(plan), 0U);
  EXPECT_EQ(plan.arena, none.plan().arena);
  EXPECT_GT(plan.from_device_per_step, none.plan().from_device_per_step);
}

/// Steps of which some are updated there and some on the host go on from each other's.
TEST(DeviceState, ADurableRunGoesOnWithAnyOtherPlacement) {
  constexpr std::uint64_t kSteps = 24;
  std::mt19937 random(6);
  for (int round = 0; round < spillway::testing::few_or(3, 6); ++round) {
    auto shape = plan::test::random_shape(random, round);
    shape.format = static_cast<state::StateFormat>((round + 1) % 3);
    const DurableRun run(shape, kSteps);
    SCOPED_TRACE(text("round ", round));
    ASSERT_NO_FATAL_FAILURE(test::expect_lives_with_a_device(run, 1 + round % 2, 10, random));
  }
}

TEST(DeviceState, CheckpointsStandAloneAndLieOnPaths) {
  const DurableRun run({.layers = 2, .tied = false, .tokens = 32}, 8);
  const Directory where;
  auto settings = DurableRun::settings(where.path(), 1, {1, 0, 1, 1});
  settings.budget.device = tier(0.3, 0.7, 0.5);
  test::delay_copies(settings, 5);
  settings.budget.checkpoints = 1;
  const auto saved = where.path() / "saved", manifest = where.path() / "manifest";
  std::filesystem::create_directory(saved);
  std::filesystem::create_directory(manifest);
  {
    Engine engine(run.description(), settings);
    engine.start();
    run.fill(engine);
    run.train(engine, 1, 3);
    engine.save_manifest(manifest);
    engine.save_weights(saved, 1 * GiB);
    engine.save_state(saved / "state");
    run.train(engine, 4, 5);
    engine.close();
  }
  for (const double state : {0.0, 0.5, 1.0}) {
    Engine alone(run.description(), with_device(tier(state, 1), 7));
    alone.start();
    alone.load_state(saved / "state", saved, 3);
    ASSERT_TRUE(run.holds(alone, 3));
    run.train(alone, 4, 8);
    EXPECT_TRUE(run.holds(alone, 8)) << state;
  }
  Engine back(run.description(), settings);
  ASSERT_EQ(back.start({.reopen = true, .checkpoint = manifest, .pinned = [&] { return std::vector{manifest}; }}).step,
            3U);
  EXPECT_TRUE(run.holds(back, 3));
  run.train(back, 4, 8);
  EXPECT_TRUE(run.holds(back, 8));
  back.close();
}

TEST(DeviceState, WhatItCannotUpdateIsRefusedByNameWhenAskedFor) {
  const auto message_of = [](const plan::test::Shape& shape) -> std::string {
    try {
      const Engine engine(describe(shape), with_device(tier(1), 0));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_input);
      return error.what();
    }
    return "accepted";
  };
  for (const auto format : {state::StateFormat::exact, state::StateFormat::bf16, state::StateFormat::int8}) {
    EXPECT_EQ(message_of({.format = format}), "accepted");
  }
  const auto optimizer = message_of({.optimizer = &optim::lion});
  EXPECT_NE(optimizer.find("a device updates adamw, and this run has lion"), std::string::npos) << optimizer;
  const auto whole = message_of({.optimizer = &optim::muon});
  EXPECT_NE(whole.find("a device updates adamw, and this run has muon"), std::string::npos) << whole;
}

}  // namespace
}  // namespace spillway
