// What a run says of itself, by the names that pages and logs use.
#include "spillway/execute/counters.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "spillway/base/field_json.h"
#include "spillway/execute/telemetry_fields.h"
#include "tests/execute/planned.h"

namespace spillway::execute {
namespace {

using test::Planned;

TEST(Counters, TellOfPathsUpdatesAndWaits) {
  const Planned planned;
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  test::fill(run, planned);
  test::train_step(run, planned);
  run.commit("");
  run.flush();
  const auto found = make_json(counters(run.counted(), planned.budget));
  EXPECT_EQ(found["arena_bytes"], planned.plan.arena);
  const auto& path = found["paths"]["path:0"];
  EXPECT_GT(path["written"].get<Bytes>(), planned.layout.parameters() * 12);
  EXPECT_GT(path["read"].get<Bytes>(), 0U);
  EXPECT_GT(path["used"].get<Bytes>(), 0U);
  EXPECT_EQ(path["volume"], planned.volume().string());
  EXPECT_TRUE(found["outages"].empty());
  for (const auto* lane : {"read", "update", "write", "commit"}) EXPECT_TRUE(found["stall_seconds"].contains(lane));
  std::uint64_t elements = 0;
  for (const auto& chunk : planned.layout.chunks()) elements += chunk.used;
  EXPECT_EQ(found["updates"]["dram"]["elements"], elements);
  EXPECT_FALSE(found.contains("device"));
}

TEST(Counters, OfTheNetworkAreNoneInAWorldOfOne) {
  EXPECT_FALSE(network_counters(nullptr).has_value());
}

TEST(Counters, TellOfTheDeviceAndOfNoPath) {
  const Planned planned({.placement = {1, 1, 1, 1}, .durability = plan::Durability::none, .paths = 0, .device = true});
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  test::fill(run, planned);
  test::train_step(run, planned);
  run.flush();
  const auto found = make_json(counters(run.counted(), planned.budget));
  EXPECT_GT(found["device"]["to_device"].get<Bytes>(), 0U);
  EXPECT_FALSE(found.contains("paths"));
  EXPECT_FALSE(found["stall_seconds"].contains("commit"));
  const auto lanes = silence(run.counted(), planned.plan, planned.layout, planned.budget);
  ASSERT_EQ(lanes.size(), 3U);
  for (const auto* lane : {"to_device", "from_device", "device_update"}) {
    EXPECT_EQ(lanes.at(text("device:", lane)).device, "simulated") << lane;
    EXPECT_EQ(lanes.at(text("device:", lane)).silent_seconds, 0) << lane << ": nothing is under way";
  }
}

TEST(Counters, KnowOfNobodyWhoWaitsForAProcessThatIsAlone) {
  const Planned planned;
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  EXPECT_FALSE(lateness(run.counted(), planned.plan.schedule, planned.layout, planned.budget));
}

TEST(Silence, IsOfEachPath) {
  const Planned planned({.paths = 2});
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  const auto paths = silence(run.counted(), planned.plan, planned.layout, planned.budget);
  ASSERT_EQ(paths.size(), 2U);
  EXPECT_EQ(paths.at("path:1").volume, planned.volume(1).string());
  EXPECT_EQ(paths.at("path:1").under_way, 0U);
}

TEST(Counters, OfADeviceThatHasMadeNoPassTellSoInFiles) {
  EXPECT_TRUE(make_json(DeviceCounters{}).at("passes").empty());
  EXPECT_FALSE(make_json(Counters{}).contains("device"));
  EXPECT_TRUE(make_json(MemoryPlaces{}).at("aside").empty());
}

TEST(Where, IsEmptyWhereMemoryIsOneTier) {
  const Planned planned;
  EXPECT_FALSE(where(planned.plan, planned.layout, planned.description.rule(), planned.budget, {}, {}));
}

}  // namespace
}  // namespace spillway::execute
