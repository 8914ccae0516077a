// Whole chunks in and out of where they live.
#include "spillway/execute/tiers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "spillway/memory/arena.h"
#include "tests/execute/planned.h"

namespace spillway::execute {
namespace {

using test::Planned;

/// By where chunks live: on the path, in memory, half and half, on a device.
class TiersTest : public ::testing::TestWithParam<int> {
 protected:
  static test::PlanOptions options() {
    test::PlanOptions out{.durability = plan::Durability::none};
    const double share = GetParam() == 0 ? 0 : GetParam() == 2 ? 0.5 : 1;
    out.placement = {share, share, share, 1};
    out.device = GetParam() == 3;
    return out;
  }
  TiersTest() : planned(options()), storage(planned.run_plan(), planned.volumes(false)) {
    if (GetParam() == 3) {
      planned.budget.device->state = 1;
      planned.plan = plan::make_plan(planned.description, planned.layout, planned.budget, planned.rates);
    }
    Recovery recovery;
    if (planned.plan.path_bytes > 0) {
      EXPECT_TRUE(storage.open({}, recovery));
    }
    resources.emplace(planned.run_plan(), 1, storage.paths());
    if (planned.plan.path_bytes > 0) storage.start(recovery);
    tiers.emplace(planned.plan, planned.layout, planned.description.rule(), resources->arenas(), storage.store(),
                  resources->device());
  }
  ~TiersTest() override { storage.stop(); }

  Planned planned;
  std::optional<Resources> resources;
  RunStorage storage;
  std::optional<Tiers> tiers;
};

TEST_P(TiersTest, GiveBackWhatTheyWereGiven) {
  const auto rule = planned.description.rule();
  const memory::Arena given(round_up(2 * largest_chunk_bytes(rule, planned.layout), Bytes{4096}));
  auto* const out = given.data();
  auto* const in = out + round_up(largest_chunk_bytes(rule, planned.layout), Bytes{4096});
  const auto make = [&](std::size_t c, std::size_t bytes) {
    std::mt19937 random(static_cast<unsigned>(c));
    std::generate_n(out, bytes, [&] { return static_cast<std::byte>(random()); });
  };
  EXPECT_FALSE(tiers->take_stored());
  for (const auto& chunk : planned.layout.chunks()) {
    const auto weights = weight_bytes(rule, chunk), states = state_bytes(rule, chunk);
    make(chunk.id, weights + states);
    tiers->store(chunk.id, out, out + weights);
    EXPECT_EQ(tiers->on_device(chunk.id), GetParam() == 3);
    if (GetParam() == 1) {
      EXPECT_TRUE(std::equal(out, out + weights, tiers->resident_weight(chunk.id)));
    }
    if (GetParam() == 0 || GetParam() == 3) {
      EXPECT_EQ(tiers->resident_weight(chunk.id), nullptr);
      EXPECT_EQ(tiers->resident_state(chunk.id), nullptr);
    }
  }
  for (const auto& chunk : planned.layout.chunks()) {
    const auto weights = weight_bytes(rule, chunk), bytes = weights + state_bytes(rule, chunk);
    make(chunk.id, bytes);
    std::fill_n(in, bytes, std::byte{});
    tiers->load(chunk.id, in, nullptr);
    EXPECT_TRUE(std::equal(out, out + weights, in));
    EXPECT_TRUE(std::all_of(in + weights, in + bytes, [](std::byte it) { return it == std::byte{}; }));
    tiers->load(chunk.id, nullptr, in + weights);
    EXPECT_TRUE(std::equal(out, out + bytes, in)) << "chunk " << chunk.id;
  }
  EXPECT_TRUE(tiers->take_stored());
  EXPECT_FALSE(tiers->take_stored());
}

TEST_P(TiersTest, SwapWeightsOfOneSize) {
  const auto rule = planned.description.rule();
  const auto& chunks = planned.layout.chunks();
  const auto one = chunks.front();
  const auto is_alike = [&](const state::Chunk& it) { return it.elements == one.elements && it.block != one.block; };
  const auto other = *std::find_if(chunks.rbegin(), chunks.rend(), is_alike);
  const auto bytes = weight_bytes(rule, one);
  const memory::Arena given(round_up(4 * bytes, Bytes{4096}));
  const auto scratch = given.span().first(2 * bytes);
  const auto made = given.span().subspan(2 * bytes, bytes), found = given.span().subspan(3 * bytes, bytes);
  const auto make = [&](std::size_t c) { std::ranges::fill(made, static_cast<std::byte>(c + 1)); };
  for (const auto& chunk : {one, other}) {
    make(chunk.id);
    tiers->store(chunk.id, made.data(), nullptr);
  }
  const auto* before = tiers->resident_weight(one.id);
  for (int swaps = 1; swaps <= 3; ++swaps) {
    WeightSwap swap(one.id, other.id, scratch);
    tiers->start_swap(swap);
    EXPECT_EQ(tiers->slots().slot_of(one.id), swaps % 2 == 0 ? other.id : one.id) << "before its end";
    tiers->wait(swap);
    EXPECT_TRUE(swap.has_ended());
    tiers->end_swap(swap);
    EXPECT_EQ(tiers->slots().slot_of(one.id), swaps % 2 == 0 ? one.id : other.id);
    EXPECT_EQ(tiers->resident_weight(swaps % 2 == 0 ? one.id : other.id), before);
    for (const auto& chunk : {one, other}) {
      make(chunk.id);
      tiers->load(chunk.id, found.data(), nullptr);
      EXPECT_TRUE(std::ranges::equal(made, found)) << "chunk " << chunk.id << " after " << swaps << " swaps";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Where, TiersTest, ::testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace spillway::execute
