// Chunks are distributed to NUMA nodes so that their updates end together, within what each node can hold.
#include "spillway/plan/nodes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "spillway/base/error.h"
#include "spillway/base/field_json.h"
#include "spillway/plan/arena_layout.h"
#include "spillway/plan/planner.h"
#include "spillway/plan/regions.h"
#include "spillway/plan/summary_fields.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan {
namespace {

constexpr Bytes kPlenty = 1 * GiB;

class Nodes : public ::testing::Test {
 protected:
  Nodes()
      : description_(test::describe({.layers = 16, .hidden = 256, .ffn = 512, .chunk_elements = 1 << 15})),
        layout_(description_.layout()) {
    rates_.cores = 4;
    rates_.update = 1e9;
    rates_.io_cores = 0;
    rates_.forward = rates_.backward = 1e-5;
  }

  void set_rates(const std::vector<double>& updates) {
    rates_.nodes.clear();
    for (const auto update : updates) rates_.nodes.push_back({.update = update, .update_thread = update});
  }

  [[nodiscard]] Placement everything() const { return test::placement_of(layout_); }

  [[nodiscard]] std::vector<double> elements(const std::vector<std::uint16_t>& node, std::size_t first,
                                             std::size_t last) const {
    std::vector<double> out(3, 0);
    for (auto c = first; c < last; ++c) out[node[c]] += static_cast<double>(layout_.chunks()[c].elements);
    return out;
  }

  Budget budget(const std::vector<Bytes>& capacities) const {
    Budget out;
    out.dram = 8 * GiB;
    for (std::size_t n = 0; n < capacities.size(); ++n) {
      out.nodes.push_back({.id = static_cast<unsigned>(n), .capacity = capacities[n]});
    }
    return out;
  }

  Plan plan(const Budget& budget) const { return make_plan(description_, layout_, budget, rates_); }

  Description description_;
  state::Layout layout_;
  Rates rates_;
};

TEST_F(Nodes, AreDistributedToInProportionToTheirRatesFromTheFirstChunkOn) {
  set_rates({4e8, 1e8, 2e8});
  const auto node =
      distribute(description_, layout_, everything(), rates_, {{0, 2, 1}, false}, {kPlenty, kPlenty, kPlenty});
  ASSERT_TRUE(node);
  const auto chunks = layout_.chunks().size();
  ASSERT_GT(chunks, 60U);
  const auto largest = static_cast<double>(layout_.largest_chunk());
  for (const auto last : {chunks / 3, chunks / 2, chunks}) {
    const auto distributed = elements(*node, 0, last);
    const auto all = distributed[0] + distributed[1] + distributed[2];
    EXPECT_NEAR(distributed[0], all * 4 / 7, 1.5 * largest) << last;
    EXPECT_NEAR(distributed[1], all * 1 / 7, 1.5 * largest) << last;
    EXPECT_NEAR(distributed[2], all * 2 / 7, 1.5 * largest) << last;
  }
}

TEST_F(Nodes, ThatAreFullAreLeftOut) {
  set_rates({4e8, 1e8});
  Bytes all = 0, most = 0;
  for (Index c = 0; c < layout_.chunks().size(); ++c) {
    all += count_resident_bytes(description_, layout_, everything(), c);
    most = std::max(most, count_resident_bytes(description_, layout_, everything(), c));
  }
  const auto node = distribute(description_, layout_, everything(), rates_, {{0, 1}, false}, {all / 4, all});
  ASSERT_TRUE(node);
  Bytes here = 0;
  for (Index c = 0; c < node->size(); ++c) {
    if ((*node)[c] == 0) here += count_resident_bytes(description_, layout_, everything(), c);
  }
  EXPECT_LE(here, all / 4);
  EXPECT_GT(here + most, all / 4);
  EXPECT_FALSE(distribute(description_, layout_, everything(), rates_, {{0, 1}, false}, {all / 4, all / 2}));
}

/// A model with a large table that tokens look up, and a head of its own.
class NodesWithTable : public Nodes {
 protected:
  NodesWithTable()
      : wide_(test::describe({.layers = 8,
                              .hidden = 256,
                              .ffn = 512,
                              .vocabulary = 6000,
                              .tied = false,
                              .tokens = 64,
                              .chunk_elements = 1 << 15})),
        wide_layout_(wide_.layout()) {}

  [[nodiscard]] std::vector<Index> slices() const {
    std::vector<Index> out;
    for (Index c = 0; c < wide_layout_.chunks().size(); ++c) {
      if (!has_dense_grad(wide_, wide_layout_, c)) out.push_back(c);
    }
    return out;
  }

  Description wide_;
  state::Layout wide_layout_;
};

TEST_F(NodesWithTable, SlicesLieOnTheFastestNodeThatHasRoom) {
  set_rates({4e8, 1e8, 8e8});
  const auto placement = test::placement_of(wide_layout_);
  const auto table = slices();
  ASSERT_GT(table.size(), 20U);
  Bytes bytes = 0;
  for (const auto c : table) bytes += count_resident_bytes(wide_, wide_layout_, placement, c);
  const auto count = [&](const std::vector<std::uint16_t>& node, std::uint16_t on) {
    return static_cast<std::size_t>(std::ranges::count_if(table, [&](Index c) { return node[c] == on; }));
  };
  const DistributionPolicy all{{0, 2, 1}, false};
  const auto roomy = distribute(wide_, wide_layout_, placement, rates_, all, {kPlenty, kPlenty, kPlenty});
  ASSERT_TRUE(roomy);
  EXPECT_EQ(count(*roomy, 2), table.size());
  const auto tight = distribute(wide_, wide_layout_, placement, rates_, all, {kPlenty, kPlenty, bytes / 2});
  ASSERT_TRUE(tight);
  EXPECT_EQ(count(*tight, 2), table.size() / 2);
  EXPECT_EQ(count(*tight, 1), 0U);
  EXPECT_EQ(count(*tight, 0) + count(*tight, 2), table.size());
}

TEST_F(NodesWithTable, TheirUpdatesTakeNoLongerThanTheFastestNodeAlone) {
  set_rates({4e7, 1e7});
  const auto found = make_plan(wide_, wide_layout_, budget({kPlenty, kPlenty}), rates_);
  double elements = 0, end = 0;
  for (const auto c : slices()) {
    elements += static_cast<double>(wide_layout_.chunks()[c].elements);
    end = std::max(end, found.prediction.tasks[found.schedule.update_task[c]].end);
  }
  EXPECT_LE(end, 1.05 * elements / 4e7);
  EXPECT_GT(found.node_peaks[1], 1 * MiB) << "layers are on both nodes";
}

TEST_F(Nodes, WeightsAloneLieWhereComputeReadsThem) {
  set_rates({4e8, 1e8});
  const auto placement = test::placement_of(layout_, {.state = false});
  const DistributionPolicy both{{0, 1}, false};
  const auto in_place = distribute(description_, layout_, placement, rates_, both, {kPlenty, kPlenty});
  const auto streamed = distribute(description_, layout_, placement, rates_, both, {kPlenty, kPlenty}, true);
  ASSERT_TRUE(in_place && streamed);
  EXPECT_TRUE(std::ranges::all_of(*in_place, [](auto node) { return node == 0; }));
  EXPECT_TRUE(std::ranges::all_of(*streamed, [](auto node) { return node == 1; }));
}

TEST_F(Nodes, OfAPlanHoldWhatTheirBudgetsAllow) {
  set_rates({4e8, 1e8, 2e8});
  const auto found = plan(budget({kPlenty, kPlenty, kPlenty}));
  ASSERT_EQ(found.node_peaks.size(), 3U);
  EXPECT_EQ(found.node_peaks[0] + found.node_peaks[1] + found.node_peaks[2], found.dram_peak);
  for (const auto peak : found.node_peaks) EXPECT_GT(peak, 1 * MiB);
  const auto tight = budget({kPlenty, found.node_peaks[1] / 2, found.node_peaks[2] / 3});
  const auto less = plan(tight);
  for (std::size_t n = 0; n < 3; ++n) EXPECT_LE(less.node_peaks[n], tight.nodes[n].capacity) << n;
  EXPECT_GT(less.node_peaks[0], found.node_peaks[0]);
}

TEST_F(Nodes, RegionsCoverTheArenaAndHoldTheirChunks) {
  set_rates({4e8, 1e8, 2e8});
  const auto found = plan(budget({kPlenty, kPlenty, kPlenty}));
  Bytes at = 0;
  for (const auto& region : found.regions) {
    EXPECT_EQ(region.begin, at);
    EXPECT_EQ(region.begin % 4096, 0U);
    EXPECT_LT(region.begin, region.end);
    at = region.end;
  }
  EXPECT_EQ(at, found.arena);
  const auto node_at = [&](Bytes offset) {
    const auto it = std::ranges::upper_bound(found.regions, offset, {}, &Region::end);
    return it->node;
  };
  const auto& schedule = found.schedule;
  const auto rule = description_.rule();
  for (Index c = 0; c < layout_.chunks().size(); ++c) {
    const auto& chunk = layout_.chunks()[c];
    const auto node = found.placement[c].node();
    const auto state = schedule.buffers[schedule.resident_state[c]].offset;
    const auto weight = schedule.buffers[schedule.groups[c].weight.buffer].offset + schedule.groups[c].weight.offset;
    for (const auto offset :
         {state, state + state_bytes(rule, chunk) - 1, weight, weight + weight_bytes(rule, chunk) - 1}) {
      EXPECT_EQ(node_at(offset), node) << "chunk " << c;
    }
    EXPECT_EQ(schedule.tasks[schedule.update_task[c]].unit, node);
  }
  for (const auto& buffer : schedule.buffers) {
    EXPECT_LE(buffer.offset + buffer.bytes, found.arena);
    if (buffer.whole) continue;
    EXPECT_EQ(node_at(buffer.offset), 0);
    EXPECT_GE(buffer.offset, found.resident);
  }
}

TEST_F(Nodes, BuffersInUseTogetherDoNotOverlap) {
  set_rates({1e8, 1e8});
  const auto found = plan(budget({kPlenty, kPlenty}));
  std::map<Bytes, Bytes> whole;
  for (const auto& buffer : found.schedule.buffers) {
    if (buffer.whole) whole[buffer.offset] = buffer.offset + buffer.bytes;
  }
  Bytes end = 0;
  for (const auto& [begin, last] : whole) {
    EXPECT_GE(begin, end);
    end = last;
  }
  EXPECT_LE(end, found.resident);
}

TEST_F(Nodes, UpdateTogetherAtTheSumOfTheirRates) {
  set_rates({4e7, 1e7});
  const auto both = plan(budget({kPlenty, kPlenty})).prediction;
  set_rates({4e7});
  const auto one = plan(budget({kPlenty})).prediction;
  EXPECT_EQ(both.bottleneck, "update");
  const auto sum = one.update_seconds * 4 / 5;
  EXPECT_NEAR(both.update_seconds, sum, 0.02 * sum);
  EXPECT_NEAR(both.step_seconds, one.step_seconds * 4 / 5, 0.03 * one.step_seconds);
}

TEST_F(Nodes, OfWhichOneIsTooSlowIsLeftOut) {
  set_rates({4e7, 4e7, 1e2});
  const auto found = plan(budget({kPlenty, kPlenty, kPlenty}));
  EXPECT_LE(found.node_peaks[2], 0U);
  EXPECT_GT(found.node_peaks[1], 1 * MiB);
}

TEST_F(Nodes, ThatAreSlowToReadKeepNoWeightsThatComputeWaitsFor) {
  set_rates({4e9, 4e9});
  rates_.nodes[1].read = 1e6;
  const auto found = plan(budget({kPlenty, kPlenty}));
  EXPECT_EQ(found.node_peaks[1], 0U);
  rates_.nodes[1].read = 1e12;
  EXPECT_GT(plan(budget({kPlenty, kPlenty})).node_peaks[1], 1 * MiB);
}

TEST_F(Nodes, ARefusalNamesThemAndWhatWouldFitFits) {
  set_rates({4e8, 1e8});
  auto asked = budget({kEngineBytes + 2 * MiB, 4 * MiB});
  try {
    static_cast<void>(plan(asked));
    FAIL() << "fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    const std::string message = error.what();
    for (const auto* word : {"numa:0", "numa:1", "--storage"}) {
      EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
    }
    const auto at = message.find("--node 0=");
    ASSERT_NE(at, std::string::npos) << message;
    asked.nodes[0].capacity = std::stoull(message.substr(at + 9)) * MiB;
  }
  const auto found = plan(asked);
  for (std::size_t n = 0; n < 2; ++n) EXPECT_LE(found.node_peaks[n], asked.nodes[n].capacity);
}

TEST_F(Nodes, ThatAreFullSpillToPaths) {
  set_rates({4e8, 1e8});
  auto asked = budget({kEngineBytes + 16 * MiB, 16 * MiB});
  asked.paths = {{.name = "path:0", .capacity = 1 * GiB}};
  asked.durability = Durability::none;
  rates_.paths = {{.read = 1e9, .write = 1e9, .mixed = 1e9}};
  const auto found = plan(asked);
  EXPECT_GT(found.path_bytes, 0U);
  EXPECT_GT(found.node_peaks[1], 4 * MiB);
  for (std::size_t n = 0; n < 2; ++n) EXPECT_LE(found.node_peaks[n], asked.nodes[n].capacity);
}

TEST_F(Nodes, AreTiersInThePlansFile) {
  set_rates({4e8, 1e8});
  const auto asked = budget({kPlenty, kPlenty});
  const auto found = plan(asked);
  const auto summary = summarize(found, description_, layout_, asked);
  ASSERT_EQ(summary.tiers.size(), 2U);
  EXPECT_EQ(summary.tiers[0].name, "numa:0");
  EXPECT_EQ(summary.tiers[1].name, "numa:1");
  EXPECT_TRUE(std::ranges::none_of(summary.bytes, [](const auto& it) { return it.tier == "dram"; }));
}

class Files : public Nodes {
 protected:
  /// DRAM, and a file.
  [[nodiscard]] Budget asked(Bytes dram, Bytes file) const {
    Budget out;
    out.dram = dram;
    out.nodes = {{.kind = NodeKind::dram}, {.id = 0, .capacity = file, .kind = NodeKind::file}};
    return out;
  }
};

TEST_F(Files, AreDistributedToByTheirRates) {
  set_rates({4e7, 1e7});
  const auto found = plan(asked(kPlenty, kPlenty));
  ASSERT_EQ(found.node_peaks.size(), 2U);
  EXPECT_EQ(found.prediction.bottleneck, "update");
  const auto states = [&](std::uint16_t node) {
    double out = 0;
    for (Index c = 0; c < layout_.chunks().size(); ++c) {
      if (found.placement[c].node() == node) out += static_cast<double>(layout_.chunks()[c].elements);
    }
    return out;
  };
  EXPECT_NEAR(states(1) / states(0), 0.25, 0.05);
}

TEST_F(Files, AreNotCountedByTheBudgetOfTheProcess) {
  set_rates({4e8, 4e8});
  auto plain = asked(kPlenty, kPlenty);
  plain.nodes.clear();
  rates_.nodes.clear();
  const auto whole = plan(plain);
  set_rates({4e8, 4e8});
  plain.dram = whole.dram_peak / 2;
  EXPECT_THROW(static_cast<void>(plan(plain)), Error);
  const auto found = plan(asked(plain.dram, 256 * MiB));
  EXPECT_LE(found.node_peaks[0], plain.dram);
  EXPECT_LE(found.node_peaks[1], 256 * MiB);
  EXPECT_GT(found.dram_peak, plain.dram);
  EXPECT_EQ(found.node_peaks[0] + found.node_peaks[1], found.dram_peak);
}

TEST_F(Files, BesideNodesLeaveTheseNoMoreThanTheBudget) {
  set_rates({4e8, 4e8, 1e8});
  const auto plain = plan(budget({kPlenty, kPlenty}));
  auto both = budget({kPlenty, kPlenty});
  both.dram = plain.dram_peak - 16 * MiB;
  both.nodes.push_back({.id = 0, .capacity = kPlenty, .kind = NodeKind::file});
  const auto found = plan(both);
  EXPECT_LE(found.node_peaks[0] + found.node_peaks[1], both.dram);
  EXPECT_GT(found.node_peaks[2], 0U);
}

TEST_F(Files, ARefusalNamesThemAndWhatWouldFitFits) {
  set_rates({4e8, 1e8});
  auto small = asked(kEngineBytes + 2 * MiB, 16 * MiB);
  try {
    static_cast<void>(plan(small));
    FAIL() << "fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    const std::string message = error.what();
    EXPECT_NE(message.find("dram with"), std::string::npos) << message;
    EXPECT_NE(message.find("file:0 with 16.0 MiB"), std::string::npos) << message;
    const auto at = message.find("--dram_budget ");
    ASSERT_NE(at, std::string::npos) << message;
    small.dram = std::stoull(message.substr(at + 14)) * MiB;
  }
  const auto found = plan(small);
  EXPECT_LE(found.node_peaks[0], small.dram);
  EXPECT_LE(found.node_peaks[1], 16 * MiB);
}

TEST_F(Files, AreTiersInThePlansFile) {
  set_rates({4e7, 1e7});
  const auto both = asked(kPlenty, kPlenty);
  const auto written = make_json(summarize(plan(both), description_, layout_, both));
  ASSERT_EQ(written["tiers"].size(), 2U);
  EXPECT_EQ(written["tiers"][0]["name"], "dram");
  EXPECT_EQ(written["tiers"][0]["capacity"], kPlenty);
  EXPECT_EQ(written["tiers"][1]["name"], "file:0");
  EXPECT_GT(written["tiers"][1]["planned_peak"], 0U);
  for (const auto& tier : written["tiers"]) {
    Bytes parts = 0;
    for (const auto& it : written["bytes"]) parts += it["tier"] == tier["name"] ? it["bytes"].get<Bytes>() : 0;
    EXPECT_EQ(parts, tier["planned_peak"].get<Bytes>());
  }
}

}  // namespace
}  // namespace spillway::plan
