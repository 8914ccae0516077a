#include "spillway/plan/settings.h"

#include <gtest/gtest.h>

#include "spillway/base/error.h"

namespace spillway::plan {
namespace {

EngineSettings two_nodes() {
  return {.dram_budget = 1'000'000'000,
          .nodes = {{.id = 0, .capacity = 4000, .update = 8e9, .update_thread = 1e9, .read = 2e11},
                    {.id = 2, .capacity = 5000, .update = 1e9, .update_thread = 5e8}},
          .profile = {.cores = 16},
          .update_cores = 10};
}

TEST(Settings, NodesAreBudgetsAndRates) {
  const auto budget = make_budget(two_nodes());
  ASSERT_EQ(budget.nodes.size(), 2U);
  EXPECT_EQ(budget.nodes[1].id, 2U);
  EXPECT_EQ(budget.nodes[1].capacity, 5000U);
  EXPECT_EQ(budget.nodes[1].name(), "numa:2");
  const auto rates = make_rates(two_nodes());
  ASSERT_EQ(rates.nodes.size(), 2U);
  EXPECT_EQ(rates.nodes[0].read, 2e11);
  EXPECT_EQ(rates.nodes[0].threads, 8U) << "eight of its threads fill the first, two the second";
  EXPECT_EQ(rates.nodes[1].threads, 2U);
  EXPECT_EQ(rates.nodes[0].scale_to(4), 4e9);
  EXPECT_EQ(rates.nodes[0].scale_to(12), 8e9);
}

TEST(Settings, FilesAreTiersAndDramBesideThemHasTheBudget) {
  EngineSettings settings{.dram_budget = 7000,
                          .nodes = {{.kind = NodeKind::dram, .update = 8e9},
                                    {.kind = NodeKind::file, .capacity = 5000, .directory = "/mnt", .read = 3e9}},
                          .profile = {.cores = 4}};
  settings.device = DeviceSettings{.links = {{.node = 0, .to_gpu_bytes_per_second_together = 5}}};
  const auto budget = make_budget(settings);
  ASSERT_EQ(budget.nodes.size(), 2U);
  EXPECT_EQ(budget.nodes[0].name(), "dram");
  EXPECT_EQ(budget.nodes[0].capacity, 7000U);
  EXPECT_EQ(budget.nodes[1].name(), "file:0");
  EXPECT_EQ(budget.nodes[1].capacity, 5000U);
  const auto rates = make_rates(settings);
  EXPECT_EQ(rates.nodes[1].read, 3e9);
  EXPECT_EQ(rates.nodes[1].to_device, 0) << "links are of NUMA nodes";
}

TEST(Settings, WithoutCoresOfTheirOwnUpdatesHaveThoseOfCompute) {
  auto settings = two_nodes();
  settings.update_cores = 0;
  const auto rates = make_rates(settings);
  EXPECT_EQ(rates.nodes[0].threads, 12U) << "15, since the caller takes part";
  EXPECT_EQ(rates.nodes[1].threads, 3U);
  settings.profile.cores = 2;
  for (const auto& node : make_rates(settings).nodes) EXPECT_EQ(node.threads, 1U);
}

TEST(Settings, PassesThatNobodyTimedFollowFromTheOthers) {
  const EngineSettings settings{.seconds = {.forward = 1, .backward = 3, .kept_forward = 1.5},
                                .device = DeviceSettings{.to_device = 4, .latency = 2}};
  const auto rates = make_rates(settings);
  EXPECT_EQ(rates.kept_forward, 1.5);
  EXPECT_EQ(rates.kept_backward, 2) << "a forward pass less";
  EXPECT_EQ(rates.to_device, 4);
  EXPECT_EQ(rates.copy_latency, 2);
  EXPECT_EQ(scale(settings.seconds, 2), (PassSeconds{.forward = 2, .backward = 6, .kept_forward = 3}));
}

TEST(Settings, WritesOfABlockDeviceCountAsFastAsItsReads) {
  EngineSettings settings = two_nodes();
  settings.storage = {{.device = "/dev/vdb"}, {.directory = "/mnt"}, {.directory = "/full"}};
  settings.profile.paths = {
      {.read_bytes_per_second = 4e9}, {.read_bytes_per_second = 3e9, .write_bytes_per_second = 1e9}, {}};
  const auto rates = make_rates(settings);
  EXPECT_EQ(rates.paths[0].write, 4e9) << "nobody may write to it before it is erased";
  EXPECT_DOUBLE_EQ(rates.paths[0].mixed, 4e9) << "both directions share the time";
  EXPECT_DOUBLE_EQ(rates.paths[1].mixed, 1.5e9);
  EXPECT_EQ(rates.paths[2].write, 0) << "of a path without a measurement nothing is known";
}

TEST(Settings, ValuesThatMakeNoSenseAreRefusedByKey) {
  const auto words_of = [](const EngineSettings& settings) -> std::string {
    try {
      static_cast<void>(make_budget(settings));
      static_cast<void>(make_rates(settings));
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(words_of({}), "");
  EXPECT_NE(words_of({.placement = {.state = 1.5}}).find("placement state is 1.5"), std::string::npos);
  EXPECT_NE(words_of({.placement = {.grad = -1.0}}).find("placement grad is -1"), std::string::npos);
  EXPECT_NE(words_of({.nodes = {{.update = -5}}}).find("update"), std::string::npos);
  EXPECT_NE(words_of({.seconds = {.backward = -1}}).find("backward"), std::string::npos);
  EXPECT_NE(words_of({.file_systems = {{.name = "/a", .paths = {1}}}}).find("/a names path 1"), std::string::npos);
}

}  // namespace
}  // namespace spillway::plan
