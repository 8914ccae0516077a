#include "spillway/plan/units.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/plan/case.h"

namespace spillway::plan {
namespace {

std::ptrdiff_t kept(const Placement& placement, Residence ChunkPlacement::*home) {
  return std::ranges::count_if(placement.chunks, [&](const auto& it) { return (it.*home).in_memory(); });
}
std::ptrdiff_t kept_boundaries(const Placement& placement) {
  return std::ranges::count_if(placement.boundaries, [](const auto& it) { return it.in_memory(); });
}

TEST(Units, WithoutAPathEverythingStays) {
  const test::Case it;
  const Units units(it.problem());
  EXPECT_EQ(units.free(), 0U);
  const auto all = units.place(0);
  EXPECT_TRUE(units.all_stay(all));
  for (const auto home : {&ChunkPlacement::weight, &ChunkPlacement::state}) {
    EXPECT_EQ(kept(all, home), std::ssize(all.chunks));
  }
  EXPECT_EQ(kept_boundaries(all), std::ssize(all.boundaries));
}

TEST(Units, WhatIsFreeIsKeptWeightsFirst) {
  auto it = test::Case().with_path();
  const Units units(it.problem());
  const auto none = units.place(0);
  EXPECT_EQ(kept(none, &ChunkPlacement::weight) + kept(none, &ChunkPlacement::state) + kept_boundaries(none), 0);
  const auto some = units.place(units.free() / 4);
  EXPECT_GT(kept(some, &ChunkPlacement::weight), 0);
  EXPECT_EQ(kept(some, &ChunkPlacement::state), 0);
  EXPECT_TRUE(units.all_stay(units.place(units.free())));
  EXPECT_FALSE(units.all_stay(units.place(units.free() - 1)));
}

TEST(Units, ExpertsThatAreApartStayOneByOne) {
  auto it = test::Case({.layers = 2, .experts = 3}).with_path();
  const auto& layer = it.layout.blocks()[it.layout.layers().front()];
  const auto objects = weight_objects(it.layout, layer);
  ASSERT_EQ(objects.size(), 4U) << "the rest of the layer, and three";
  const Units units(it.problem());
  std::size_t apart = 0;
  for (std::size_t free = 0; free <= units.free(); ++free) {
    const auto placement = units.place(free);
    const auto stays = [&](Index c) { return placement[c].weight.in_memory(); };
    for (const auto& object : objects) {
      for (auto c = object.first; c < object.end(); ++c) EXPECT_EQ(stays(c), stays(object.first)) << "one object";
    }
    apart += stays(objects[1].first) && !stays(objects[3].first) ? 1 : 0;
  }
  EXPECT_GT(apart, 0U);
}

TEST(Units, ExpertsThatMostStepsAskForStayFirst) {
  const auto it = test::Case({.layers = 2, .experts = 4, .asked = 0.5, .uneven = true}).with_path();
  const Units units(it.problem());
  const auto& chunks = it.layout.chunks();
  for (std::size_t free = 0; free <= units.free(); ++free) {
    const auto placement = units.place(free);
    double least_kept = 1, most_left = 0;
    for (const auto& chunk : chunks) {
      const bool stays = placement[chunk.id].weight.in_memory();
      (stays ? least_kept : most_left) = stays ? std::min(least_kept, chunk.asked) : std::max(most_left, chunk.asked);
    }
    EXPECT_GE(least_kept, most_left) << free << " units";
  }
}

TEST(Units, ExpertsThatAsManyStepsAskForStayInEachLayerAlike) {
  const auto it = test::Case({.layers = 2, .experts = 4, .asked = 0.5}).with_path();
  const Units units(it.problem());
  for (std::size_t free = 0; free <= units.free(); ++free) {
    const auto placement = units.place(free);
    std::vector<int> kept(it.layout.blocks().size(), 0);
    for (const auto& chunk : it.layout.chunks()) {
      const auto& span = it.layout.spans(chunk.id).front();
      if (chunk.asked >= 1 || span.tensor_first % it.layout.tensors()[span.tensor].piece() != 0) continue;
      kept[chunk.block] += placement[chunk.id].weight.in_memory() ? 1 : 0;
    }
    const auto layers = it.layout.layers();
    EXPECT_LE(std::abs(kept[layers[0]] - kept[layers[1]]), 1) << free << " units";
  }
}

TEST(Units, AGradientThatIsLoggedIsKeptLast) {
  auto it = test::Case().with_path();
  const Units plain(it.problem()), durable(it.problem(Durability::step));
  EXPECT_LT(kept(plain.place(plain.free() - 1), &ChunkPlacement::state),
            kept(durable.place(durable.free() - 1), &ChunkPlacement::state));
}

TEST(Units, AShareThatIsAskedForIsFixed) {
  auto it = test::Case().with_path();
  it.budget.placement.state = 0.5;
  const Units units(it.problem());
  const auto chunks = static_cast<double>(it.layout.chunks().size());
  EXPECT_NEAR(static_cast<double>(kept(units.place(0), &ChunkPlacement::state)), chunks / 2, 0.15 * chunks);
  EXPECT_EQ(kept(units.place(units.free()), &ChunkPlacement::state), kept(units.place(0), &ChunkPlacement::state))
      << "nothing of it is free";
}

TEST(Units, WhatLivesOnADeviceCountsAsKept) {
  auto it = test::Case().with_path();
  const auto chunks = it.layout.chunks().size();
  Placement device(it.layout);
  const auto& block = it.layout.blocks()[1];
  for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) device.chunks[c].live_on_device();
  const auto least = least_placement(it.problem(), device);
  for (Index c = 0; c < chunks; ++c) EXPECT_EQ(least[c].weight, device[c].weight) << c;
  EXPECT_LT(Units(it.problem(), device).free(), Units(it.problem()).free());
}

}  // namespace
}  // namespace spillway::plan
