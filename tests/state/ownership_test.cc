#include "spillway/state/ownership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/sys/failing.h"

namespace spillway::state {
namespace {

std::vector<BlockSpec> sharded_model(std::uint64_t scale) {
  const auto wide = static_cast<std::int64_t>(scale);
  std::vector<BlockSpec> blocks{{"embed", BlockRole::embedding, {{"embed.weight", {40 * wide, 64}}}}};
  for (const char* name : {"layer.0", "layer.1"}) {
    const auto named = [&](const char* tensor) { return std::string(name) + tensor; };
    TensorSpec frozen{named(".frozen"), {64, 16 * wide}};
    frozen.training = Training::frozen;
    TensorSpec gate{named(".gate"), {wide, 64}};
    gate.form = Form::fp32;
    blocks.push_back({name, BlockRole::layer, {{named(".up"), {64, 48 * wide}}, gate, frozen, {named(".norm"), {64}}}});
  }
  blocks.push_back({"head", BlockRole::head, {{"head.weight", {40 * wide, 64}}}});
  return blocks;
}

Layout sharded_layout(std::uint64_t scale, std::size_t shards, std::uint64_t chunk = 8192) {
  return Layout(sharded_model(scale), chunk, kTensorAlignment, ComputeType::bf16, optim::Scope::element, shards);
}

TEST(Ownership, OfAWorldOfOneIsEverything) {
  for (const std::size_t shards : {1U, 4U}) {
    const auto layout = sharded_layout(16, shards);
    const Ownership ownership(layout);
    EXPECT_EQ(ownership.world(), (World{.size = 1, .rank = 0}));
    ASSERT_EQ(ownership.mine().size(), layout.chunks().size());
    for (const auto& chunk : layout.chunks()) {
      EXPECT_TRUE(ownership.has(chunk.id));
      EXPECT_EQ(ownership.mine()[chunk.id], chunk.id);
      EXPECT_EQ(ownership.owner(chunk.id), 0U);
    }
  }
}

TEST(Ownership, GivesEveryChunkToOneRankAndContiguousShardsToEach) {
  for (const std::size_t shards : {1U, 2U, 3U, 4U, 7U, 16U}) {
    const auto layout = sharded_layout(24, shards);
    for (std::size_t size = 1; size <= shards; ++size) {
      std::vector<std::size_t> owners(layout.chunks().size(), 0);
      for (std::size_t rank = 0; rank < size; ++rank) {
        const Ownership ownership(layout, {.size = size, .rank = rank});
        for (const auto c : ownership.mine()) {
          owners[c] += 1;
          EXPECT_EQ(ownership.owner(c), rank);
          EXPECT_EQ(rank_of(layout.chunks()[c].shard, shards, size), rank);
        }
      }
      EXPECT_EQ(rank_of(0, shards, size), 0U);
      EXPECT_EQ(rank_of(shards - 1, shards, size), size - 1);
      for (std::size_t shard = 1; shard < shards; ++shard) {
        const auto before = rank_of(shard - 1, shards, size), owner = rank_of(shard, shards, size);
        EXPECT_TRUE(owner == before || owner == before + 1) << "no rank is without a shard";
      }
      for (const auto count : owners) EXPECT_EQ(count, 1U);
    }
  }
}

TEST(Ownership, SharesABlockEvenly) {
  const std::size_t shards = 4;
  const auto layout = sharded_layout(512, shards);
  for (const auto& block : layout.blocks()) {
    std::vector<std::uint64_t> elements(shards, 0);
    for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
      elements[layout.chunks()[c].shard] += layout.chunks()[c].elements;
    }
    const auto [least, most] = std::ranges::minmax(elements);
    EXPECT_LE(most - least, 4 * kChunkGranule + 64 * block.slice_rows) << block.name;
  }
}

TEST(Ownership, OfReplicatedChunksIsEveryRanks) {
  const auto layout = sharded_layout(64, 4);
  std::vector<bool> replicated;
  for (const auto& chunk : layout.chunks()) replicated.push_back(!is_trainable(chunk.training));
  std::size_t everywhere = 0;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const Ownership ownership(layout, {.size = 3, .rank = rank}, replicated);
    for (const auto& chunk : layout.chunks()) {
      if (is_trainable(chunk.training)) continue;
      everywhere += 1;
      EXPECT_TRUE(ownership.has(chunk.id));
      EXPECT_FALSE(ownership.owner(chunk.id).has_value());
    }
  }
  EXPECT_GT(everywhere, 0U);
}

TEST(Ownership, RefusesWhatCannotBe) {
  const auto layout = sharded_layout(16, 2);
  EXPECT_ERROR(Ownership(layout, {.size = 2, .rank = 2}), ErrorCode::bad_input, "rank 2 of a world of 2");
  EXPECT_ERROR(Ownership(layout, {.size = 3, .rank = 0}), ErrorCode::bad_input, "at most as many as virtual_ranks");
  const std::vector<bool> all(layout.chunks().size(), true);
  EXPECT_ERROR(Ownership(layout, {.size = 2, .rank = 0}, all), ErrorCode::bad_input, "only what is frozen");
}

}  // namespace
}  // namespace spillway::state
