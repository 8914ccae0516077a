// The timeline as a person or a report reads it.
#include "spillway/execute/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "spillway/plan/memory_breakdown.h"
#include "tests/plan/models.h"

namespace spillway::execute {
namespace {

using nlohmann::json;

class Trace : public ::testing::Test {
 protected:
  Trace()
      : description_(plan::test::describe({.layers = 4})), layout_(description_.blocks, description_.chunk_elements) {
    plan::Budget budget{.dram = 64 * MiB, .process = 0, .work = 0};
    budget.paths = {{.name = "path:0", .capacity = 1 * GiB}};
    budget.placement = {0.5, 0.0, 0.0, 1.0};
    plan::Rates rates;
    rates.forward = rates.backward = rates.head_loss = rates.head_gradient = 0.01;
    rates.update = 1e8;
    rates.paths = {{.read = 1e8, .write = 1e8, .mixed = 1e8}};
    plan_ = plan::make_plan(description_, layout_, budget, rates);
  }

  [[nodiscard]] std::vector<json> events(const std::vector<Times>& times, int process, const char* kind) const {
    std::vector<json> out;
    const auto whole = json::parse(trace(plan_, layout_, times));
    for (const auto& event : whole["traceEvents"]) {
      if (event["pid"] == process && event["ph"] == kind) out.push_back(event);
    }
    return out;
  }

  const plan::Description description_;
  const state::Layout layout_;
  plan::Plan plan_;
};

TEST_F(Trace, LanesOfADeviceOfRefitsAndOfTheNetworkAreShownWhereAStepHasThem) {
  for (const auto lane : {plan::Lane::compute, plan::Lane::update, plan::Lane::read, plan::Lane::write}) {
    EXPECT_TRUE(has_lane(plan_, lane));
  }
  for (const auto lane : {plan::Lane::to_device, plan::Lane::device_update, plan::Lane::refit, plan::Lane::network}) {
    EXPECT_FALSE(has_lane(plan_, lane));
  }
  plan_.placement.device = true;
  plan_.schedule.network = {0};
  plan_.schedule.refit_task.front() = 0;
  for (std::size_t lane = 0; lane < plan::kLanes.size(); ++lane) {
    EXPECT_TRUE(has_lane(plan_, static_cast<plan::Lane>(lane)));
  }
}

TEST_F(Trace, TheArenaOverTheStepIsWhatThePlanHolds) {
  const auto counters = events({}, 2, "C");
  ASSERT_GT(counters.size(), 3U);
  std::uint64_t most = 0;
  double before = -1;
  for (const auto& counter : counters) {
    std::uint64_t sum = 0;
    for (const auto& [name, bytes] : counter["args"].items()) sum += bytes.get<std::uint64_t>();
    most = std::max(most, sum);
    EXPECT_GT(counter["ts"].get<double>(), before);
    before = counter["ts"];
  }
  std::uint64_t peak = 0;
  for (const auto& held : plan::breakdown_by_position(plan_.schedule)) {
    std::uint64_t sum = 0;
    for (const auto& [name, bytes] : held) sum += bytes;
    peak = std::max(peak, sum);
  }
  EXPECT_LE(most, peak);
  EXPECT_GE(most, peak / 2) << "positions that begin at one time are told once";
  EXPECT_LE(peak, plan_.arena);
}

TEST_F(Trace, PassesSayWhichLaterTierTheyReadAndWrite) {
  EXPECT_FALSE(events({}, 2, "X").front()["args"].contains("input_node"));
  for (auto& buffer : plan_.schedule.buffers) buffer.node = buffer.kind == plan::BufferClass::activation ? 2 : 0;
  std::size_t told = 0;
  for (const auto& event : events({}, 2, "X")) {
    const auto& args = event["args"];
    EXPECT_FALSE(args.contains("gradient_node"));
    EXPECT_EQ(args.value("input_node", 2), 2);
    told += args.contains("input_node") ? 1 : 0;
  }
  EXPECT_GT(told, 1U);
}

TEST_F(Trace, NothingIsMeasuredBeforeAStepHasEnded) {
  EXPECT_TRUE(events({}, 1, "C").empty());
  EXPECT_TRUE(events({}, 1, "X").empty());
  EXPECT_FALSE(events({}, 2, "X").empty());
}

TEST_F(Trace, PassesOnTheDeviceHaveTheirOwnLane) {
  std::vector<Times> times(plan_.schedule.tasks.size());
  const auto& passes = plan_.schedule.passes;
  for (const auto& pass : passes) times[pass.task] = {.start = 5, .end = 6};
  times[passes[1].task].device_start = 6;
  times[passes[1].task].device_end = 6.25;
  std::vector<json> there;
  for (const auto& event : events(times, 1, "X")) {
    if (event["tid"] == 1000) there.push_back(event);
  }
  ASSERT_EQ(there.size(), 1U);  // the other passes were not measured
  EXPECT_EQ(there.front()["ts"], 1e6);
  EXPECT_EQ(there.front()["dur"], 0.25e6);
  const auto names = events(times, 1, "M");
  EXPECT_TRUE(std::ranges::any_of(names, [](const json& name) {
    return name.value("tid", 0) == 1000 && name["args"]["name"] == "passes on the device";
  }));
}

TEST_F(Trace, WhatWasMeasuredStandsBesideThePrediction) {
  std::vector<Times> times(plan_.schedule.tasks.size());
  double at = 1000;
  for (const auto& pass : plan_.schedule.passes) {
    times[pass.task] = {at, at + 0.5};
    at += 1;
  }
  const auto passes = events(times, 1, "X");
  ASSERT_EQ(passes.size(), plan_.schedule.passes.size());
  EXPECT_EQ(passes.front()["ts"], 0.0);
  EXPECT_EQ(passes.front()["dur"], 0.5e6);
  const auto counters = events(times, 1, "C");
  ASSERT_FALSE(counters.empty());
  EXPECT_LE(counters.back()["ts"].get<double>(), (at - 1000) * 1e6);
}

}  // namespace
}  // namespace spillway::execute
