#include "spillway/sys/nodes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "spillway/sys/process.h"
#include "tests/needs.h"
#include "tests/sys/failing.h"
#include "tests/sys/fake_nodes.h"

namespace spillway::sys {
namespace {

using testing::FakeNodes;

TEST(NodeListTest, ReadsAndWritesTheKernelsSets) {
  EXPECT_EQ(parse_list("0-2,5\n"), (std::vector{0, 1, 2, 5}));
  EXPECT_EQ(parse_list("\t7"), std::vector{7});
  EXPECT_TRUE(parse_list("").empty());
  EXPECT_TRUE(parse_list("\n").empty());
  EXPECT_EQ(format_list({0, 1, 2, 5, 7, 8}), "0-2,5,7,8");
  EXPECT_EQ(format_list({}), "");
}

TEST(NodesTest, OfThisMachineHaveCpusAndMemory) {
  const auto found = nodes();
  EXPECT_TRUE(std::ranges::any_of(found, [](const Node& node) { return !node.cpus.empty(); }));
  EXPECT_TRUE(std::ranges::any_of(found, [](const Node& node) { return node.has_memory() && node.allowed; }));
  for (const Node& node : found) {
    EXPECT_LE(node.free, node.total);
    EXPECT_LE(node.available, node.total);
    EXPECT_FALSE(nearest_cpus(found, node.id).empty());
  }
}

/// tests/virtual/machine.py makes it.
TEST(NodesTest, OfTheVirtualMachineAreAsItWasMade) {
  const char* machine = std::getenv("SPILLWAY_MACHINE");
  SPILLWAY_NEEDS(numa_machine, machine != nullptr && machine == std::string("numa"),
                 "not in the virtual machine of make numa");
  const auto found = nodes();
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].cpus, (std::vector<unsigned>{0, 1}));
  EXPECT_TRUE(found[1].cpus.empty() && found[2].cpus.empty());
  EXPECT_EQ(found[0].distances, (std::vector<NodeDistance>{{0, 10}, {1, 20}, {2, 31}}));
  for (const auto& [node, rate] : {std::pair{0, 200}, std::pair{1, 50}, std::pair{2, 25}}) {
    const auto& attributes = found[static_cast<std::size_t>(node)].attributes;
    ASSERT_TRUE(attributes);
    EXPECT_NEAR(attributes->read_bytes_per_second, rate * 1.024e9, 1e6);
  }
  EXPECT_TRUE(found[0].tier && found[1].tier && found[2].tier);
  EXPECT_NE(found[0].tier, found[2].tier);
  EXPECT_EQ(nearest_cpus(found, 2), found[0].cpus);
  EXPECT_GT(found[1].total, 300 * MiB);
  EXPECT_LT(found[1].total, 385 * MiB);
}

TEST(NodesTest, AnOnlyNodeHasTheMachinesMemory) {
  FakeNodes machine;
  machine.add({.id = 0, .cpus = "0-1", .total = 7 * GiB, .free = 3 * GiB});
  machine.machine_memory(24 * GiB, 19 * GiB, 20 * GiB);
  const auto found = machine.nodes();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].total, 24 * GiB);
  EXPECT_EQ(found[0].free, 19 * GiB);
  EXPECT_EQ(found[0].available, 20 * GiB);
}

TEST(NodesTest, WithoutNumaThereIsOne) {
  FakeNodes machine;
  machine.machine_memory(24 * GiB, 19 * GiB, 20 * GiB);
  machine.write("sys/devices/system/cpu/online", "0-3\n");
  const auto found = machine.nodes();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].id, 0);
  EXPECT_EQ(found[0].cpus.size(), 4U);
  EXPECT_EQ(found[0].total, 24 * GiB);
}

TEST(NodesTest, WithoutProcIsRefused) {
  const FakeNodes machine;
  EXPECT_ERROR((void)machine.nodes(), ErrorCode::unsupported, "MemTotal");
}

/// Two sockets and a card near the second.
class Sockets : public ::testing::Test {
 protected:
  Sockets() {
    machine_.add({.id = 0, .cpus = "0-3", .total = 64 * GiB, .free = 60 * GiB, .distance = "10 20 30"});
    machine_.add({.id = 1, .cpus = "4-7", .total = 64 * GiB, .free = 10 * GiB, .distance = "20 10 14"});
    machine_.add({.id = 2, .cpus = "", .total = 256 * GiB, .free = 256 * GiB, .distance = "30 14 10"});
    machine_.machine_memory(384 * GiB, 326 * GiB, 330 * GiB);
  }
  FakeNodes machine_;
};

TEST_F(Sockets, AreReadAsTheyAre) {
  const auto found = machine_.nodes();
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[1].cpus, (std::vector<unsigned>{4, 5, 6, 7}));
  EXPECT_EQ(found[1].total, 64 * GiB);
  EXPECT_EQ(found[1].free, 10 * GiB);
  EXPECT_EQ(found[2].distances, (std::vector<NodeDistance>{{0, 30}, {1, 14}, {2, 10}}));
  EXPECT_TRUE(found[2].cpus.empty());
  EXPECT_TRUE(found[2].allowed);
  EXPECT_FALSE(found[2].attributes);
  EXPECT_FALSE(found[2].tier);
}

TEST_F(Sockets, CpusNearACardAreThoseAtTheLeastDistance) {
  EXPECT_EQ(nearest_cpus(machine_.nodes(), 0), (std::vector<unsigned>{0, 1, 2, 3}));
  EXPECT_EQ(nearest_cpus(machine_.nodes(), 2), (std::vector<unsigned>{4, 5, 6, 7}));
}

TEST_F(Sockets, WhatTheFirmwareSaysOfInitiatorsGoesBeforeDistance) {
  machine_.write("sys/devices/system/node/node2/access0/initiators/read_bandwidth", "25600\n");
  machine_.write("sys/devices/system/node/node2/access0/initiators/read_latency", "350\n");
  machine_.write("sys/devices/system/node/node2/access0/initiators/node0/uevent", "");
  machine_.write("sys/devices/virtual/memory_tiering/memory_tier22/nodelist", "2\n");
  machine_.write("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0-1\n");
  const auto found = machine_.nodes();
  ASSERT_TRUE(found[2].attributes);
  EXPECT_DOUBLE_EQ(found[2].attributes->read_bytes_per_second, 25.6e9);
  EXPECT_DOUBLE_EQ(found[2].attributes->read_latency_seconds, 350e-9);
  EXPECT_EQ(found[2].attributes->write_bytes_per_second, 0);
  EXPECT_EQ(found[2].tier, 22);
  EXPECT_EQ(found[1].tier, 4);
  EXPECT_EQ(nearest_cpus(found, 2), (std::vector<unsigned>{0, 1, 2, 3}));
}

TEST_F(Sockets, CacheThatIsCleanIsAvailable) {
  machine_.write("sys/devices/system/node/node1/meminfo",
                 "Node 1 MemTotal: 67108864 kB\nNode 1 MemFree: 1048576 kB\nNode 1 Inactive(file): 2097152 kB\n"
                 "Node 1 Dirty: 1048576 kB\n");
  EXPECT_EQ(machine_.nodes()[1].available, 2 * GiB);
  EXPECT_EQ(takeable(machine_.nodes()[1]), GiB);
}

TEST_F(Sockets, AMarginIsKept) {
  EXPECT_EQ(takeable(machine_.nodes()[0]), 59 * GiB);
  EXPECT_EQ(takeable({.total = 384 * MiB, .available = 100 * MiB}), 84 * MiB);
  EXPECT_EQ(takeable({.total = 384 * MiB, .available = 10 * MiB}), 0U);
}

TEST_F(Sockets, ACpusetForbidsNodes) {
  machine_.write("proc/self/status", "Name:\tx\nMems_allowed:\t3\nMems_allowed_list:\t0-1\n");
  const auto found = machine_.nodes();
  EXPECT_TRUE(found[1].allowed);
  EXPECT_FALSE(found[2].allowed);
  EXPECT_ERROR(
      (void)find_node(found, 2), ErrorCode::bad_input,
      "node 2 is not permitted to this process (its cpuset, or the numactl that started it); memory can be had "
      "on node 0,1");
}

TEST_F(Sockets, ANodeThatIsNotThereIsRefusedWithThoseThatAre) {
  const auto found = machine_.nodes();
  EXPECT_EQ(find_node(found, 1).id, 1);
  EXPECT_ERROR((void)find_node(found, 3), ErrorCode::bad_input, "node 3 does not exist");
  EXPECT_ERROR((void)find_node(found, -1, "node ="), ErrorCode::bad_input,
               "node = -1 does not exist or is offline; memory can be had on node 0-2");
}

TEST_F(Sockets, ANodeWithoutMemoryIsRefused) {
  machine_.add({.id = 3, .cpus = "8-9", .total = 0, .free = 0});
  EXPECT_ERROR((void)find_node(machine_.nodes(), 3), ErrorCode::bad_input,
               "node 3 has CPUs but no memory; memory can be had on node 0-2");
}

TEST(Cores, AreTheCpusThatShareOne) {
  testing::FakeNodes machine;
  machine.write("sys/devices/system/cpu/cpu1/topology/core_cpus_list", "1,9\n");
  machine.write("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2-3\n");
  EXPECT_EQ(core_cpus(1, machine.root()), (std::vector<unsigned>{1, 9}));
  EXPECT_EQ(core_cpus(2, machine.root()), (std::vector<unsigned>{2, 3}));
  EXPECT_EQ(core_cpus(5, machine.root()), std::vector<unsigned>{5});
}

}  // namespace
}  // namespace spillway::sys
