#include "spillway/plan/settings_agreement.h"

#include <gtest/gtest.h>

#include <vector>

#include "spillway/base/error.h"

namespace spillway::plan {
namespace {

EngineSettings first() {
  EngineSettings out{.dram_budget = 8,
                     .work_bytes = 2,
                     .saved_activations = {.blocks = {1, 2}, .token_bytes = 5},
                     .storage = {{.directory = "/a", .capacity = 5, .remote = true, .node = 1}},
                     .near = 1,
                     .nodes = {{.id = 1, .capacity = 9, .update = 4}},
                     .profile = {.cores = 4, .network_latency = 1e-4},
                     .seconds = {.forward = 1, .kept_forward = 3},
                     .threads = 2};
  out.device = DeviceSettings{.stream = 7, .memory = 10, .work = 2, .to_device = 6};
  out.file_systems = {{.name = "/"}};
  return out;
}

EngineSettings second() {
  EngineSettings out{.dram_budget = 6,
                     .work_bytes = 3,
                     .saved_activations = {.blocks = {1, 2}, .token_bytes = 4},
                     .storage = {{.directory = "/b", .capacity = 4}},
                     .near = 0,
                     .nodes = {{.id = 0, .capacity = 7, .update = 5}},
                     .profile = {.cores = 8, .network_latency = 2e-4},
                     .seconds = {.forward = 0.5},
                     .threads = 9};
  out.device = DeviceSettings{.stream = 8, .memory = 8, .work = 3, .to_device = 9};
  return out;
}

TEST(SettingsAgreement, PlansSuitTheProcessThatHasLeast) {
  const std::vector every{first(), second()};
  const auto found = agree(first(), every);
  EXPECT_EQ(found.dram_budget, 6U);
  EXPECT_EQ(found.work_bytes, 3U) << "the most that is taken";
  EXPECT_EQ(found.saved_activations.token_bytes, 5);
  EXPECT_EQ(found.seconds.forward, 1);
  EXPECT_FALSE(found.seconds.kept_forward.has_value()) << "the other does not know it";
  EXPECT_EQ(found.storage.at(0).capacity, 4U);
  EXPECT_EQ(found.nodes.at(0).capacity, 7U);
  EXPECT_EQ(found.nodes.at(0).update, 4);
  EXPECT_EQ(found.profile.cores, 4U);
  EXPECT_EQ(found.profile.network_latency, 2e-4);
  EXPECT_EQ(found.device->memory, 8U);
  EXPECT_EQ(found.device->work, 3U);
  EXPECT_EQ(found.device->to_device, 6);
  const auto other = agree(second(), every);
  EXPECT_EQ(other.dram_budget, 6U);
  EXPECT_EQ(other.seconds.forward, 1);
}

TEST(SettingsAgreement, NamesStayThoseOfTheProcess) {
  const auto found = agree(first(), std::vector{first(), second()});
  EXPECT_EQ(found.near, 1U);
  EXPECT_EQ(found.nodes.at(0).id, 1U);
  EXPECT_EQ(found.storage.at(0).directory, "/a");
  EXPECT_EQ(found.storage.at(0).node, 1U);
  EXPECT_EQ(found.device->stream, 7U);
  EXPECT_EQ(found.threads, 2U);
  EXPECT_EQ(found.file_systems.size(), 1U);
}

TEST(SettingsAgreement, EachNeedsAsManyPaths) {
  auto without = second();
  without.storage.clear();
  try {
    static_cast<void>(agree(first(), std::vector{first(), without}));
    FAIL() << "a process has no path";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[1, 0] paths"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace spillway::plan
