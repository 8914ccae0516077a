#include "spillway/machine/node_choice.h"

#include <gtest/gtest.h>

#include "spillway/base/error.h"
#include "spillway/machine/node_rates.h"
#include "spillway/sys/nodes.h"
#include "tests/sys/fake_nodes.h"

namespace spillway::machine {
namespace {

/// Two sockets with CPUs of this machine on the second, and a card without.
class NodeChoiceTest : public ::testing::Test {
 protected:
  NodeChoiceTest() {
    machine_.add({.id = 0, .cpus = "4096-4099", .total = 64 * GiB, .free = 50 * GiB, .distance = "10 20 30"});
    machine_.add({.id = 1, .cpus = "0-4095", .total = 64 * GiB, .free = 20 * GiB, .distance = "20 10 30"});
    machine_.add({.id = 2, .cpus = "", .total = 128 * GiB, .free = 100 * GiB, .distance = "30 30 10"});
    machine_.machine_memory(256 * GiB, 170 * GiB, 170 * GiB);
  }

  [[nodiscard]] NodeChoice choose(const std::vector<NodeShare>& asked, Bytes held = 1 * GiB) const {
    return choose_nodes(asked, held, machine_.root());
  }
  [[nodiscard]] std::string refusal(const std::vector<NodeShare>& asked, ErrorCode code) const {
    try {
      static_cast<void>(choose(asked));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "accepted";
  }

  testing::FakeNodes machine_;
};

TEST_F(NodeChoiceTest, IsAllThatCanBeTakenByDefaultTheNearestFirst) {
  const auto found = choose({});
  ASSERT_EQ(found.nodes.size(), 3U);
  EXPECT_EQ(found.nodes[0].id, 1);
  const auto nodes = machine_.nodes();
  EXPECT_EQ(found.nodes[0].capacity, sys::takeable(nodes[1]) + 1 * GiB) << "with what the process has there";
  for (const auto& share : found.nodes) {
    if (share.id != 1) {
      EXPECT_EQ(share.capacity, sys::takeable(nodes[static_cast<std::size_t>(share.id)]));
    }
  }
  EXPECT_FALSE(found.dram);
}

TEST_F(NodeChoiceTest, IsWhatIsAskedForAndNoMore) {
  const auto found = choose({{2, 10 * GiB}, {1, 4 * GiB}});
  EXPECT_EQ(found.nodes, (std::vector<NodeShare>{{1, 4 * GiB}, {2, 10 * GiB}}));
  EXPECT_EQ(choose({{2, 10 * GiB}}).nodes, (std::vector<NodeShare>{{2, 10 * GiB}}));
}

TEST_F(NodeChoiceTest, PutsTheNodeOfAGpuFirst) {
  const auto near = [&](const std::vector<NodeShare>& asked, int node) {
    return choose_nodes(asked, 1 * GiB, machine_.root(), node).nodes.front().id;
  };
  EXPECT_EQ(near({}, 0), 0);
  EXPECT_EQ(near({}, 1), 1);
  EXPECT_EQ(near({{2, 10 * GiB}, {0, 4 * GiB}, {1, 4 * GiB}}, 0), 0);
  EXPECT_EQ(near({{2, 10 * GiB}, {1, 4 * GiB}}, 0), 1) << "a node that is not used is not first";
}

TEST_F(NodeChoiceTest, RefusesWhatIsNotThereByName) {
  const auto unknown = refusal({{7, 1 * GiB}}, ErrorCode::bad_input);
  EXPECT_NE(unknown.find("7"), std::string::npos) << unknown;
  EXPECT_NE(refusal({{1, 1 * GiB}, {1, 2 * GiB}}, ErrorCode::bad_input).find("1 is named twice"), std::string::npos);
}

TEST_F(NodeChoiceTest, RefusesMoreThanANodeHasAndSaysWhatWouldFit) {
  const auto full = refusal({{1, 1 * GiB}, {2, 120 * GiB}}, ErrorCode::does_not_fit);
  const auto at = full.find("--node 2=");
  ASSERT_NE(at, std::string::npos) << full;
  EXPECT_NO_THROW(static_cast<void>(choose({{1, 1 * GiB}, {2, std::stoull(full.substr(at + 9)) * MiB}})));
}

TEST(NodeChoice, OfOneNodeIsTheMachinesMemory) {
  testing::FakeNodes machine;
  machine.add({.id = 0, .cpus = "0-4095", .total = 8 * GiB, .free = 6 * GiB, .distance = "10"});
  machine.machine_memory(8 * GiB, 6 * GiB, 6 * GiB);
  EXPECT_TRUE(choose_nodes({}, 0, machine.root()).nodes.empty());
  const auto asked = choose_nodes({{0, 2 * GiB}}, 0, machine.root());
  EXPECT_TRUE(asked.nodes.empty());
  EXPECT_EQ(asked.dram, 2 * GiB);
  EXPECT_THROW(static_cast<void>(choose_nodes({{1, 2 * GiB}}, 0, machine.root())), Error);
}

TEST(NodeRates, AreThoseOfEachNode) {
  std::vector<int> ids;
  for (const auto& node : sys::nodes()) {
    if (node.has_memory() && node.allowed) ids.push_back(node.id);
  }
  const auto rates = measure_nodes(ids, 0.01, {});
  ASSERT_EQ(rates.size(), ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(rates[i].id, ids[i]);
    EXPECT_GT(rates[i].update_elements_per_second_thread, 1e5);
    EXPECT_GT(rates[i].update_elements_per_second, 1e5);
    EXPECT_GT(rates[i].read_bytes_per_second, 1e6);
  }
}

}  // namespace
}  // namespace spillway::machine
