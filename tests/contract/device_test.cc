// A device with memory of its own never changes a bit of the result: whatever stays there, however its copies are
// delayed, with state in DRAM or on paths.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "tests/contract/directory.h"
#include "tests/contract/on_device.h"
#include "tests/nightly.h"
#include "tests/plan/models.h"

namespace spillway {
namespace {

using plan::test::describe;
using test::Directory;

/// `queued`: the caller's work runs behind it, in a stream of the simulated device.
/// After step `store_after` other values are stored in the last tensor; `see` looks on after every step.
Outcome train_on_device(const plan::Description& description, Settings settings, int steps, bool pause,
                        bool queued = false, int store_after = -1, const std::function<void(Engine&, int)>& see = {}) {
  test::Training training(description, std::move(settings), queued);
  auto& engine = training.engine;
  auto& toy = training.toy;
  Outcome out;
  for (int s = 0; s < steps; ++s) {
    toy.expected = s % 3 == 0 ? std::nullopt : std::optional(toy.update);
    out.norms.push_back(toy.step(static_cast<std::uint64_t>(s)).grad_norm);
    if (pause && s % 3 == 1) engine.flush();
    if (pause && s % 3 == 2) toy.step(1000 + static_cast<std::uint64_t>(s), false);
    if (store_after == s) {
      const std::vector<float> values(engine.layout().tensors().back().elements, 0.25F);
      engine.store_tensor(engine.layout().tensors().size() - 1, 0, values);
    }
    if (see) see(engine, s);
  }
  out.masters = toy.masters();
  return out;
}

Settings with_device(std::uint64_t seed) {
  return test::with_device({.capacity = 1 * GiB}, seed);
}

std::uint64_t rounds(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

TEST(Device, ChangesNoBit) {
  std::mt19937 random(31);
  std::uniform_real_distribution<> share(0, 1);
  for (int round = 0; round < spillway::testing::few_or(8, 20); ++round) {
    const auto description = describe(plan::test::random_shape(random, round));
    const auto expected = train_on_device(description, everything_in_dram(), 6, false);
    for (int placement = 0; placement < 4; ++placement) {
      auto settings = with_device(random() % 3 == 0 ? 0 : random());
      settings.threads = 1 + random() % 3;
      settings.budget.window = random() % 4;
      settings.budget.speculative_updates = true;
      settings.budget.update_schedule = random() % 2 == 0 ? plan::Updates::early : plan::Updates::automatic;
      settings.device.simulated.registers = random() % 4 != 0;
      auto& device = *settings.budget.device;
      device.coalesce_to = random() % 4 == 0 ? plan::kGoodCopy : random() % (48 * KiB);
      if (placement > 0) device.weight = placement == 1 ? 0 : share(random);
      if (placement > 1 && random() % 2 == 0) device.state = share(random);
      if (placement > 1 && random() % 2 == 0) device.device_updated = share(random);
      if (placement > 1 && random() % 2 == 0) device.grad = share(random);
      if (placement > 0) device.activation = placement == 1 ? 0 : share(random);
      const std::array<Directory, 2> directories;
      for (std::size_t p = 0; p < directories.size() && placement == 3; ++p) {
        settings.storage.places.push_back({directories[p].path()});
        settings.budget.paths.push_back({.name = text("path:", p), .capacity = 1 * GiB});
      }
      if (placement == 3) settings.budget.placement = {share(random), share(random), share(random), share(random)};
      const bool queued = random() % 2 == 0;
      expect_same(expected, train_on_device(description, settings, 6, placement >= 2, queued),
                  text("round ", round, " placement ", placement, queued ? " queued" : ""));
    }
  }
}

TEST(Device, WithVirtualRanksChangesNoBit) {
  for (const auto type : {state::ComputeType::bf16, state::ComputeType::fp32}) {
    for (const bool tied : {true, false}) {
      const auto description =
          describe({.layers = 2, .tied = tied, .tokens = 35, .micro_batches = 7, .type = type, .virtual_ranks = 3});
      const auto expected = train_on_device(description, everything_in_dram(), 4, false);
      for (const bool queued : {false, true}) {
        expect_same(expected, train_on_device(description, with_device(5), 4, true, queued),
                    text(name_of(type), tied ? " tied" : "", queued ? " queued" : ""));
      }
    }
  }
}

/// SPILLWAY_DEVICE_SEEDS says how many.
TEST(Device, RandomDelaysChangeNoBit) {
  const auto description =
      describe({.layers = 2, .hidden = 16, .ffn = 24, .vocabulary = 60, .tokens = 16, .chunk_elements = 512});
  const auto expected = train_on_device(description, everything_in_dram(), 4, false);
  for (std::uint64_t seed = 1; seed <= rounds("SPILLWAY_DEVICE_SEEDS", spillway::testing::few_or(60, 200)); ++seed) {
    auto settings = with_device(seed);
    settings.budget.device->weight = seed % 3 == 0 ? 0.5 : 0;
    settings.budget.device->activation = seed % 5 == 0 ? 1 : 0;
    settings.budget.device->state = seed % 2 == 0 ? 0 : static_cast<double>(seed % 7) / 6;
    settings.budget.device->device_updated = static_cast<double>(seed % 4) / 3;
    settings.budget.device->grad = static_cast<double>(seed % 11 % 3) / 2;
    settings.budget.device->coalesce_to = seed % 7 * 512;
    settings.budget.window = seed % 4;
    expect_same(expected, train_on_device(description, settings, 4, seed % 2 == 0, seed % 3 != 1), text("seed ", seed));
  }
}

/// What is frozen is often most of a block, and an adapter the rest.
TEST(Device, FrozenChangesNoBit) {
  std::mt19937 random(37);
  for (int round = 0; round < 12; ++round) {
    auto shape = plan::test::random_shape(random, round);
    const auto& parts = plan::test::kFrozenParts;
    do {
      shape.frozen = parts[random() % parts.size()];
    } while (describe(shape).layout().trainable_parameters() == 0);
    const auto description = describe(shape);
    for (const int store_after : {-1, 2}) {
      const auto expected = train_on_device(description, everything_in_dram(), 5, false, false, store_after);
      for (const bool paths : {false, true}) {
        auto settings = with_device(random());
        settings.budget.device->weight = random() % 4 / 3.0;
        settings.budget.device->coalesce_to = random() % (48 * KiB);
        const Directory directory;
        if (paths) {
          settings.storage.places.push_back({directory.path()});
          settings.budget.paths.push_back({.capacity = 1 * GiB});
          settings.budget.durability = plan::Durability::none;
          settings.budget.placement = {0.3, 0.3, 0.3, 0.3};
        }
        const bool queued = random() % 2 == 0;
        expect_same(expected, train_on_device(description, settings, 5, true, queued, store_after),
                    text("round ", round, paths ? " paths" : "", " stored after ", store_after));
      }
    }
  }
}

/// Bytes that the newest step sent to the device by tasks whose name begins so.
Bytes sent(const Engine& engine, const std::string& name) {
  Bytes out = 0;
  const auto trace = nlohmann::json::parse(engine.timeline());
  for (const auto& event : trace["traceEvents"]) {
    const bool measured = event["pid"] == 1 && event["ph"] == "b";
    if (measured && event["name"].get<std::string>().starts_with(name)) {
      out += event["args"]["bytes"].get<Bytes>();
    }
  }
  return out;
}

TEST(Device, WhatStaysIsSentWhenItHasChanged) {
  const auto description = describe({.layers = 3, .tied = false, .frozen = "up|down|embed"});
  Bytes all = 0, trainable = 0;
  const auto layout = description.layout();
  for (const auto& block : layout.blocks()) {
    for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
      if (block.role == state::BlockRole::embedding) continue;
      const auto bytes = layout.chunks()[c].elements * 2;
      all += bytes;
      trainable += state::is_trainable(layout.chunks()[c].training) ? bytes : 0;
    }
  }
  auto settings = with_device(0);
  settings.budget.device->weight = 1;
  EXPECT_LT(trainable, all);
  train_on_device(description, settings, 5, false, false, 2, [&](Engine& engine, int step) {
    engine.flush();
    const bool anew = step == 0 || step == 3;  // after the start, and after a tensor was stored
    EXPECT_EQ(sent(engine, "upload weight"), anew ? all : trainable) << step;
  });
}

/// The first boundary stays on the device, or comes back for backward.
TEST(Device, ARowOfTheEmbeddingCrossesOnceForAllItsTokens) {
  const auto description = describe({.layers = 2, .tokens = 64});
  for (const bool stays : {true, false}) {
    auto settings = with_device(0);
    settings.budget.device->activation = stays ? 1 : 0;
    test::Training training(description, settings, false);
    for (std::uint64_t s = 0; s < 4; ++s) {
      training.toy.step(s);
      training.engine.flush();
      const auto ids = training.toy.token_ids(s);
      const auto rows = std::set(ids.begin(), ids.end()).size();
      const auto bytes = description.row_index_bytes() + rows * description.hidden_size * 2;
      EXPECT_LT(bytes, description.packed_rows_bytes());
      EXPECT_EQ(sent(training.engine, "upload activation 0"), stays ? bytes : 2 * bytes) << "step " << s;
    }
  }
}

TEST(Device, ItsBudgetHolds) {
  const auto description = describe({.layers = 4, .tokens = 32});
  const auto expected = train_on_device(description, everything_in_dram(), 3, false);
  auto settings = with_device(0);
  settings.budget.device->capacity = 1;
  Bytes least = 0;
  try {
    const Engine engine(description, settings);
    FAIL() << "fitted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    const std::string message = error.what();
    const auto at = message.find("--gpu_memory ");
    ASSERT_NE(at, std::string::npos) << message;
    least = std::stoull(message.substr(at + 13)) * MiB;
  }
  std::size_t residents = 0;
  for (auto capacity = least; capacity < least + 600 * KiB; capacity += 100 * KiB) {
    settings.budget.device->capacity = settings.device.simulated.memory = capacity;
    const auto plan = Engine(description, settings).plan();
    EXPECT_LE(plan.device_peak, capacity);
    const auto copies = std::ranges::count_if(
        plan.placement.chunks, [](const auto& it) { return it.weight.has_device_copy() || it.device_resident(); });
    const auto now = static_cast<std::size_t>(
        copies + std::ranges::count(plan.placement.boundaries, true, &plan::Residence::has_device_copy));
    EXPECT_GE(now, residents);
    residents = now;
    expect_same(expected, train_on_device(description, settings, 3, false), text("capacity ", capacity));
  }
  EXPECT_GT(residents, 0U);
}

}  // namespace
}  // namespace spillway
