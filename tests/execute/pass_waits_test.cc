// PassWaits: a wait counts only while compute is idle.
#include "spillway/execute/pass_waits.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace spillway::execute {
namespace {

using plan::Index;
using plan::Lane;

/// Two passes, each of which needs a copy of its own, and the times of all tasks.
class PassWaitsTest : public ::testing::Test {
 protected:
  PassWaitsTest() {
    for (const Index pass : {0, 1}) {
      add(Lane::to_device, {});
      schedule_.passes.push_back({.task = add(Lane::compute, {{static_cast<Index>(2 * pass)}})});
    }
    waits_.begin(0);
  }

  Index add(Lane lane, std::vector<plan::Dependency> needs) {
    plan::Task task;
    task.lane = lane;
    task.needs = std::move(needs);
    schedule_.tasks.push_back(std::move(task));
    return static_cast<Index>(schedule_.tasks.size() - 1);
  }
  void copied(Index pass, double start, double end) { times_[2 * pass] = {start, end}; }
  [[nodiscard]] double copies() {
    const auto& seconds = waits_.waits().seconds();
    const auto it = seconds.find({Lane::to_device, 0});
    return it == seconds.end() ? 0 : it->second;
  }

  plan::Schedule schedule_;
  std::array<Times, 4> times_{};
  PassWaits waits_{schedule_, [this](std::uint64_t, Index task) { return &times_[task]; }};
};

TEST_F(PassWaitsTest, WithoutADeviceTheCallersWaitsCount) {
  copied(0, 1, 3);
  waits_.add(0, 2, 3);
  EXPECT_EQ(waits_.waits().sum(), 0) << "not yet settled";
  waits_.settle({});
  EXPECT_DOUBLE_EQ(copies(), 1);
  EXPECT_DOUBLE_EQ(waits_.waits().sum(), 1);
}

TEST_F(PassWaitsTest, AWaitOfTheCallerBesideAPassOfTheDeviceCostsNothing) {
  copied(1, 2, 6);
  waits_.add(1, 3, 6);
  waits_.settle({{.ready = 1, .start = 1, .end = 8}, {.ready = 8, .start = 8, .end = 9}});
  EXPECT_DOUBLE_EQ(waits_.waits().sum(), 0);
}

TEST_F(PassWaitsTest, AWaitOfTheStreamCountsFromThePassBefore) {
  copied(1, 2, 8);
  waits_.settle({{.ready = 1, .start = 1, .end = 5}, {.ready = 5, .start = 8, .end = 9}});
  EXPECT_DOUBLE_EQ(copies(), 3);
}

TEST_F(PassWaitsTest, AWaitOfTheCallerThatTheStreamGoesOnWithCountsOnce) {
  copied(1, 2, 8);
  waits_.add(1, 4, 7);
  waits_.settle({{.ready = 1, .start = 1, .end = 5}, {.ready = 6.9, .start = 8, .end = 9}});
  EXPECT_DOUBLE_EQ(copies(), 3) << "idle from 5 to 8";
}

TEST_F(PassWaitsTest, TheNextInstanceSettlesTheOneBefore) {
  copied(0, 1, 3);
  waits_.add(0, 2, 3);
  waits_.begin(1);
  EXPECT_DOUBLE_EQ(copies(), 1);
  waits_.settle({});
  EXPECT_DOUBLE_EQ(copies(), 1) << "once";
}

}  // namespace
}  // namespace spillway::execute
