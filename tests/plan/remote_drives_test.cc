// Drives and memory that are remote from the device.
#include "spillway/plan/remote_drives.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "spillway/base/field_json.h"
#include "spillway/plan/json.h"
#include "spillway/plan/link.h"
#include "spillway/plan/planner.h"
#include "spillway/plan/settings.h"
#include "spillway/plan/summary_fields.h"
#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

/// Two sockets: 20 GB/s are carried from node 1 to node 0, 16 GB/s the other way.
machine::Profile two_sockets() {
  machine::Profile out{.cores = 4, .update_elements_per_second = 1e9};
  out.access = {{.cpus = 0, .memory = 0, .read = {.most = 1e11}, .write = {.most = 1e11}},
                {.cpus = 0, .memory = 1, .read = {.most = 20e9}, .write = {.most = 12e9}},
                {.cpus = 1, .memory = 0, .read = {.most = 16e9}, .write = {.most = 15e9}}};
  for (const auto* name : {"0", "1", "2"}) {
    out.paths.push_back(
        {.name = name, .read_bytes_per_second = 14e9, .write_bytes_per_second = 10e9, .mixed_bytes_per_second = 16e9});
  }
  return out;
}

TEST(RemoteDrives, CpusOfEitherNodeSayWhatCrosses) {
  const auto profile = two_sockets();
  EXPECT_EQ(crossing(profile, 1, 0), 20e9) << "read by node 0, not written by node 1";
  EXPECT_EQ(crossing(profile, 0, 1), 16e9) << "read by node 1";
  EXPECT_EQ(crossing(profile, 0, 2), 0);
  EXPECT_EQ(crossing({}, 0, 1), 0);
}

TEST(RemoteDrives, DrivesOfOneNodeShareWhatCrosses) {
  const auto profile = two_sockets();
  const std::vector<PathRates> rates(3, {.read = 14e9, .write = 10e9, .mixed = 16e9});
  const auto held = over_the_link(rates, {std::nullopt, 1, 1}, 0, profile);
  EXPECT_EQ(held[0].read, 14e9);
  EXPECT_EQ(held[0].mixed, 16e9);
  for (const auto p : {1U, 2U}) {
    EXPECT_NEAR(held[p].read, 10e9, 1);
    EXPECT_NEAR(held[p].write, 8e9, 1);
    EXPECT_NEAR(held[p].mixed, 16e9, 1) << "8 GB/s each way and drive, of which 16 cross";
  }
  const auto alone = over_the_link(rates, {std::nullopt, 1}, 0, profile);
  EXPECT_EQ(alone[1].read, 14e9) << "one drive is slower than the link";
  const auto unknown = over_the_link(rates, {2, 2, 2}, 0, profile);
  EXPECT_EQ(unknown[0].read, 14e9);
  const auto near = over_the_link(rates, {1, 1, 1}, 1, profile);
  EXPECT_EQ(near[2].read, 14e9);
}

/// Three paths, of which two are by node 1.
EngineSettings remote_settings(bool remote = true) {
  const PathSettings far{.capacity = 1'000'000'000, .remote = remote, .node = 1};
  return {.dram_budget = 1'000'000'000,
          .placement = {.weight = 0, .state = 0, .grad = 0.0, .activation = 0.0},
          .storage = {{.capacity = 1'000'000'000}, far, far},
          .near = 0,
          .seconds = {.forward = 1e-5, .backward = 3e-5},
          .durability = Durability::none};
}

struct Planned {
  Plan plan;
  nlohmann::json json;
};

Planned planned(EngineSettings settings, const machine::Profile& profile) {
  settings.profile = profile;
  const auto description = test::describe({.layers = 4, .hidden = 256, .ffn = 1024, .chunk_elements = 1 << 17});
  const auto layout = description.layout();
  const auto budget = make_budget(settings);
  Planned out{.plan = make_plan(description, layout, budget, make_rates(settings)), .json = {}};
  out.json = make_json(summarize(out.plan, description, layout, budget));
  return out;
}

TEST(RemoteDrives, ThePlanSaysWhichDrivesAreFarAndWhatItCosts) {
  auto profile = two_sockets();
  const auto as_fast = planned(remote_settings(), profile);
  EXPECT_LT(*as_fast.plan.remote_seconds, 0.1 * as_fast.plan.prediction.step_seconds)
      << "of 20 GB/s written alone 16 cross";
  for (auto& it : profile.access) it.read.most = it.write.most = it.cpus == it.memory ? 1e11 : 2e9;
  const auto slow = planned(remote_settings(), profile);
  const auto& step = slow.plan.prediction;
  EXPECT_GT(*slow.plan.remote_seconds, 0.3 * step.step_seconds);
  EXPECT_EQ(slow.json["far_drives"]["seconds"], *slow.plan.remote_seconds);
  EXPECT_EQ(slow.json["far_drives"]["paths"],
            (nlohmann::json{{{"name", "path:1"}, {"node", 1}}, {{"name", "path:2"}, {"node", 1}}}));
  // The step without that is the one that near drives would give.
  auto near = profile;
  near.access.clear();
  const auto unknown = planned(remote_settings(), near);
  EXPECT_FALSE(unknown.plan.remote_seconds.has_value());
  EXPECT_NEAR(unknown.plan.prediction.step_seconds, step.step_seconds - *slow.plan.remote_seconds,
              0.02 * step.step_seconds);
  EXPECT_TRUE(unknown.json["far_drives"]["seconds"].is_null());
  EXPECT_NE(unknown.json["far_drives"]["why"].get<std::string>().find("is not known"), std::string::npos);
  // And what is kept there is less.
  EXPECT_LT(slow.plan.volumes[1], slow.plan.volumes[0]);
}

TEST(RemoteDrives, NearDrivesAreNotSpokenOf) {
  EXPECT_FALSE(planned(remote_settings(false), two_sockets()).json.contains("far_drives"));
  EXPECT_EQ(remote_words({{}, {}}, 1.0), "");
}

TEST(RemoteDrives, LinksFromOtherNodesHaveRatesOfTheirOwn) {
  EngineSettings settings{
      .near = 0, .nodes = {{.id = 0, .capacity = 1}, {.id = 1, .capacity = 1}}, .profile = {.cores = 4}};
  settings.device = DeviceSettings{
      .to_device = 5e9,
      .from_device = 5e9,
      .links = {{.node = 1, .to_gpu_bytes_per_second_together = 1e9, .from_gpu_bytes_per_second_together = 2e9},
                {.node = 0, .to_gpu_bytes_per_second_together = 4e9, .from_gpu_bytes_per_second_together = 8e9},
                {.node = 7, .to_gpu_bytes_per_second_together = 4e6, .from_gpu_bytes_per_second_together = 8e6}}};
  const auto rates = make_rates(settings);
  ASSERT_EQ(rates.nodes.size(), 2U);
  EXPECT_EQ(rates.nodes[0].to_device, 4e9);
  EXPECT_EQ(rates.nodes[1].from_device, 2e9);
  const auto description = test::describe({.layers = 2});
  const auto layout = description.layout();
  Schedule schedule;
  schedule.node.assign(layout.chunks().size(), 0);
  schedule.node[1] = 1;
  schedule.buffers = {{.whole = true}, {.whole = false}};
  const auto rule = description.rule();
  const auto seconds = [&](ObjectKind kind, Lane lane, Index count, Index host) {
    const bool up = traits(lane).fetches;
    const Task task{.op = Op::transfer,
                    .lane = lane,
                    .what = {kind, 0, count},
                    .from = {up ? host : 1},
                    .to = {up ? 1 : host},
                    .bytes = 1000};
    return copy_seconds(task, schedule, layout, rule, rates);
  };
  const auto weight = [&](Index c) { return static_cast<double>(weight_bytes(rule, layout.chunks()[c])); };
  EXPECT_NEAR(seconds(ObjectKind::weight, Lane::to_device, 2, 0), weight(0) / 4e9 + weight(1) / 1e9, 1e-12);
  EXPECT_NEAR(seconds(ObjectKind::weight, Lane::to_device, 2, 1), 1000 / 4e9, 1e-15) << "from a window";
  EXPECT_NEAR(seconds(ObjectKind::gradient, Lane::from_device, 2, 0), 1000 / 8e9, 1e-15);
}

}  // namespace
}  // namespace spillway::plan
