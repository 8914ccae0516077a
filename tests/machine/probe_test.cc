#include "spillway/machine/probe.h"

#include <gtest/gtest.h>

#include "spillway/machine/profile_json.h"
#include "spillway/sys/nodes.h"

namespace spillway::machine {
namespace {

std::vector<sys::Node> machine() {
  return {{.id = 0, .cpus = {0, 1, 2, 3}, .total = 64 * GiB, .free = 50 * GiB, .available = 60 * GiB, .tier = 4},
          {.id = 1, .cpus = {4, 5}},
          {.id = 2,
           .total = 256 * GiB,
           .free = 255 * GiB,
           .available = 255 * GiB,
           .attributes = sys::NodeAttributes{25e9, 20e9, 350e-9, 0},
           .tier = 22},
          {.id = 3, .total = 256 * GiB, .available = 255 * GiB, .allowed = false}};
}

TEST(NodeProfilesTest, SayWhatIsKnownAndWhatWasMeasured) {
  const std::vector<NodeAccess> matrix = {
      {.cpus = 0, .memory = 2, .read = {3, 9, 4}, .update = {1, 5, 8}},
      {.cpus = 1, .memory = 2, .read = {3, 7, 4}, .write = {2, 6, 4}, .copy = {1, 3, 4}, .update = {1, 6, 7}}};
  const auto nodes = node_profiles(machine(), matrix, 320 * GiB);
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_EQ(nodes[0].id, 0U);
  EXPECT_EQ(nodes[0].kind, MemoryKind::dram);
  EXPECT_EQ(nodes[0].cpus, "0-3");
  EXPECT_EQ(nodes[0].capacity, 64 * GiB);
  EXPECT_EQ(nodes[0].available, 60 * GiB);
  EXPECT_EQ(nodes[0].update_elements_per_second, 0);
  EXPECT_EQ(nodes[1].kind, MemoryKind::cxl);
  EXPECT_EQ(nodes[1].tier, 22);
  EXPECT_EQ(nodes[1].promised_read_bytes_per_second, 25e9);
  EXPECT_EQ(nodes[1].promised_latency_seconds, 350e-9);
  EXPECT_EQ(nodes[1].read_bytes_per_second, 7);
  EXPECT_EQ(nodes[1].write_bytes_per_second, 6);
  EXPECT_EQ(nodes[1].copy_bytes_per_second, 3);
  EXPECT_EQ(nodes[1].update_elements_per_second, 6);
  EXPECT_EQ(nodes[1].update_elements_per_second_thread, 1);
  EXPECT_EQ(nodes[1].update_threads, 7U);
}

TEST(NodeProfilesTest, OfACgroupHaveTheirShareOfItsLimit) {
  const auto nodes = node_profiles(machine(), {}, 16 * GiB);
  EXPECT_EQ(nodes[0].capacity, 16 * GiB);
  EXPECT_EQ(nodes[0].available, 16 * GiB);
}

TEST(ProbeTest, IsAProfileThatCanBeWrittenAndRead) {
  const auto profile = probe({}, 0.001);
  ASSERT_FALSE(profile.nodes.empty());
  ASSERT_FALSE(profile.access.empty());
  EXPECT_GT(profile.nodes.front().update_elements_per_second, 0);
  EXPECT_GT(profile.copy_bytes_per_second, 0);
  EXPECT_EQ(from_json(to_json(profile), "probe"), profile);
}

}  // namespace
}  // namespace spillway::machine
