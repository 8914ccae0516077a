// Gradients and boundary activations lie on later tiers of host memory where that makes room, by their rates.
#include "spillway/plan/aside.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/base/field_json.h"
#include "spillway/plan/arena_layout.h"
#include "spillway/plan/json.h"
#include "spillway/plan/planner.h"
#include "spillway/plan/settings.h"
#include "spillway/plan/summary_fields.h"
#include "tests/plan/case.h"
#include "tests/plan/placements.h"

namespace spillway::plan {
namespace {

constexpr std::size_t kAsideLayers = 12, kAsideBoundaries = 13;  // the last norm is a layer, too

class AsideTest : public ::testing::Test {
 protected:
  AsideTest() {
    it_.rates.nodes = {{.update = 1e9, .update_thread = 1e9, .read = 4e9},
                       {.update = 1e9, .update_thread = 1e9, .read = 1e9},
                       {.update = 1e9, .update_thread = 1e9, .read = 2e9}};
    for (unsigned n = 0; n < 3; ++n) it_.budget.nodes.push_back({.id = 2 * n, .capacity = 1 * GiB});
  }

  [[nodiscard]] Placement put(const std::vector<std::uint16_t>& tiers, const std::vector<Bytes>& room) const {
    return put_aside(it_.problem(), test::placement_of(it_.layout), tiers, room);
  }
  [[nodiscard]] static std::vector<std::size_t> boundaries_by_tier(const Placement& placement) {
    std::vector<std::size_t> out(3, 0);
    for (const auto& it : placement.boundaries) ++out[it.node];
    return out;
  }
  [[nodiscard]] Plan plan() const { return make_plan(it_.description, it_.layout, it_.budget, it_.rates); }
  [[nodiscard]] static std::size_t aside(const Plan& plan, BufferClass kind) {
    return static_cast<std::size_t>(
        std::ranges::count_if(plan.schedule.buffers, [&](const Buffer& it) { return it.kind == kind && it.node > 0; }));
  }

  test::Case it_{{.layers = kAsideLayers, .hidden = 256, .ffn = 64, .tokens = 8192, .micro_batches = 1}};
};

TEST_F(AsideTest, AreDistributedByTheRatesOfTiersThatHaveRoom) {
  const std::vector<Bytes> plenty(3, 1 * GiB);
  const auto boundary = it_.description.boundary_bytes();
  it_.budget.placement.grad_on = 0;
  EXPECT_EQ(boundaries_by_tier(put({}, plenty)), (std::vector<std::size_t>{13, 0, 0}));
  EXPECT_EQ(boundaries_by_tier(put({1, 2}, plenty)), (std::vector<std::size_t>{0, 4, 9}));
  const auto all = boundaries_by_tier(put({0, 1, 2}, plenty));
  EXPECT_EQ(all[0] + all[1] + all[2], kAsideBoundaries);
  EXPECT_TRUE(all[0] > all[2] && all[2] > all[1] && all[1] > 0);
  EXPECT_EQ(boundaries_by_tier(put({1, 2}, {0, boundary, 2 * boundary})), (std::vector<std::size_t>{10, 1, 2}));
  it_.budget.placement.activation_on = 2;
  EXPECT_EQ(boundaries_by_tier(put({1}, {0, 0, 0})), (std::vector<std::size_t>{0, 0, 13}));
}

TEST_F(AsideTest, GradientsOfALayerLieTogether) {
  it_.rates.nodes[1].read = 2e9;
  const auto found = put({1, 2}, std::vector<Bytes>(3, 1 * GiB));
  std::vector<std::size_t> by_tier(3, 0);
  for (const auto& block : it_.layout.blocks()) {
    for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
      const auto node = found.chunks[c].gradient.node;
      if (block.role == state::BlockRole::layer) {
        EXPECT_EQ(node, found.chunks[block.first_chunk].gradient.node);
      }
      ++by_tier[node];
    }
  }
  EXPECT_EQ(by_tier[0], 0U);
  EXPECT_TRUE(by_tier[1] > 0 && by_tier[2] > 0);
}

TEST_F(AsideTest, StayOnTheFirstTierWhileThatHasRoom) {
  const auto found = plan();
  EXPECT_EQ(aside(found, BufferClass::activation) + aside(found, BufferClass::grad), 0U);
}

TEST_F(AsideTest, LeaveAFirstTierThatIsTooSmallForThem) {
  const auto roomy = plan();
  const auto boundaries = kAsideBoundaries * it_.description.boundary_bytes();
  it_.budget.nodes[0].capacity = roomy.node_peaks[0] - boundaries / 2;
  it_.budget.nodes[1].capacity = it_.budget.nodes[2].capacity = 64 * MiB;
  const auto found = plan();
  EXPECT_GT(aside(found, BufferClass::activation), 0U);
  for (std::size_t n = 0; n < 3; ++n) EXPECT_LE(found.node_peaks[n], it_.budget.nodes[n].capacity) << n;
  const auto written = make_json(summarize(found, it_.description, it_.layout, it_.budget));
  std::size_t later = 0;
  for (const auto& tier : written["tiers"]) {
    Bytes parts = 0;
    for (const auto& it : written["bytes"]) parts += it["tier"] == tier["name"] ? it["bytes"].get<Bytes>() : 0;
    EXPECT_EQ(parts, tier["planned_peak"].get<Bytes>()) << tier["name"];
  }
  for (const auto& it : written["bytes"]) later += it["class"] == "activation" && it["tier"] != "numa:0" ? 1 : 0;
  EXPECT_GT(later, 0U) << written["bytes"];
  std::size_t told = 0;
  for (const auto& [tier, count] : written["boundary_activations"].items()) told += count.get<std::size_t>();
  EXPECT_EQ(told, kAsideBoundaries) << written["boundary_activations"];
}

/// A fast first tier that has room for most states, and a slow one that has room for all.
TEST(AsideStates, TakeTheFirstTierFromGradients) {
  test::Case it{{.layers = kAsideLayers, .hidden = 256, .ffn = 1024, .tokens = 64, .micro_batches = 1}};
  it.rates.nodes = {{.update = 4e6, .update_thread = 4e6, .read = 1e12},
                    {.update = 1e6, .update_thread = 1e6, .read = 1e12}};
  it.budget.nodes = {{.id = 0, .capacity = 1 * GiB}, {.id = 2, .capacity = 1 * GiB}};
  const auto plan = [&] { return make_plan(it.description, it.layout, it.budget, it.rates); };
  const auto gradients_aside = [](const Plan& of) {
    return std::ranges::count_if(of.schedule.buffers,
                                 [](const Buffer& one) { return one.kind == BufferClass::grad && one.node > 0; });
  };
  const auto chunks_on_first = [](const Plan& of) { return std::ranges::count(of.schedule.node, 0); };
  const auto peaks = plan().node_peaks;
  it.budget.nodes[0].capacity = (peaks[0] + peaks[1]) * 2 / 3;
  const auto chosen = plan();
  EXPECT_GT(gradients_aside(chosen), 0);
  EXPECT_TRUE(chosen.ample) << "all memory together refuses nothing";
  it.budget.placement.grad_on = it.budget.placement.activation_on = 0;
  const auto asked = plan();
  EXPECT_EQ(gradients_aside(asked), 0);
  EXPECT_GT(chunks_on_first(chosen), chunks_on_first(asked));
  EXPECT_LT(chosen.prediction.step_seconds, asked.prediction.step_seconds);
}

TEST_F(AsideTest, AreInTheRegionsOfTheirTiersAndShareBytesThere) {
  it_.budget.placement.grad_on = it_.budget.placement.activation_on = 1;
  const auto found = plan();
  EXPECT_EQ(aside(found, BufferClass::activation), kAsideBoundaries);
  EXPECT_GE(aside(found, BufferClass::grad), kAsideLayers);
  Bytes sum = 0;
  const auto& buffers = found.schedule.buffers;
  for (const auto& buffer : buffers) {
    const auto region = std::ranges::upper_bound(found.regions, buffer.offset, {}, &Region::end);
    if (buffer.node > 0 || !buffer.whole) {
      EXPECT_EQ(region->node, buffer.node);
      EXPECT_LE(buffer.offset + buffer.bytes, region->end);
    }
    sum += buffer.node > 0 ? buffer.bytes : 0;
  }
  EXPECT_GT(sum, 0U);
  EXPECT_LE(bytes_on(found.schedule, 1), sum);
}

TEST_F(AsideTest, PassesTakeAsLongAsTheirTierIsRead) {
  it_.budget.placement.activation_on = 1;
  const auto fast = plan().prediction.compute_seconds;
  it_.rates.nodes[1].read = 1e8;
  const auto slow = plan().prediction.compute_seconds;
  const auto moved =
      static_cast<double>(it_.description.boundary_bytes()) * (3 * kAsideBoundaries - 1);  // the first is given
  EXPECT_NEAR(slow - fast, moved / 1e8 - moved / 1e9, 0.2 * moved / 1e8);
}

TEST_F(AsideTest, ATierIsAskedForByItsName) {
  const auto asked = [](const char* name) {
    return EngineSettings{.dram_budget = 1000,
                          .placement = {.grad = 0.5, .activation = name},
                          .nodes = {{.id = 0, .capacity = 9}, {.id = 4, .capacity = 9}}};
  };
  const auto found = make_budget(asked("numa:4")).placement;
  EXPECT_EQ(found.activation_on, 1);
  EXPECT_EQ(found.activation, 1.0);
  EXPECT_EQ(found.grad, 0.5);
  EXPECT_FALSE(found.grad_on);
  try {
    static_cast<void>(make_budget(asked("numa:2")));
    FAIL() << "there is no such node";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("numa:0, numa:4"), std::string::npos) << error.what();
  }
}

TEST_F(AsideTest, ATierThatIsAskedForAndTooSmallIsRefusedWithTheSizeThatDoes) {
  it_.budget.placement.activation_on = 2;
  it_.budget.nodes[2].capacity = 1 * MiB;
  try {
    static_cast<void>(plan());
    FAIL() << "it has no room for them";
  } catch (const Error& error) {
    const std::string said = error.what(), option = "--node 4=";
    EXPECT_EQ(said.find("does not fit on numa:4"), 0U) << said;
    const auto at = said.find(option);
    ASSERT_NE(at, std::string::npos) << said;
    it_.budget.nodes[2].capacity = std::stoull(said.substr(at + option.size())) * MiB;
  }
  EXPECT_EQ(aside(plan(), BufferClass::activation), kAsideBoundaries);
}

}  // namespace
}  // namespace spillway::plan
