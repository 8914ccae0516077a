// A wait divided among what held it up, on schedules made by hand.
#include "spillway/execute/waits.h"

#include <gtest/gtest.h>

#include <vector>

namespace spillway::execute {
namespace {

using plan::Index;
using plan::Lane;

/// Tasks with the times they had; the last one is the pass that was waited for.
class Tasks {
 public:
  Index add(Lane lane, Times times, std::vector<plan::Dependency> needs = {}, std::uint16_t unit = 0) {
    plan::Task task;
    task.lane = lane;
    task.unit = unit;
    task.needs = std::move(needs);
    schedule_.tasks.push_back(std::move(task));
    times_.push_back(times);
    before_.emplace_back();
    return static_cast<Index>(schedule_.tasks.size() - 1);
  }
  /// A task's times in the instance before.
  void was(Index task, Times times) { before_[task] = times; }

  [[nodiscard]] std::map<Cause, double> wait(double begin, double end) const {
    Waits waits;
    waits.add(schedule_, static_cast<Index>(schedule_.tasks.size() - 1), begin, end,
              [&](Index task, bool previous) { return previous ? &before_[task] : &times_[task]; });
    EXPECT_DOUBLE_EQ(waits.sum(), end - begin) << "all of it is for something";
    return waits.seconds();
  }

 private:
  plan::Schedule schedule_;
  std::vector<Times> times_, before_;
};

const Cause kUpdateLane{Lane::update, 0};
Cause read_of(std::uint32_t path) {
  return {Lane::read, path};
}
Cause write_of(std::uint32_t path) {
  return {Lane::write, path};
}

TEST(Waits, AReadIsItsPathsWhoseLastPieceCame) {
  Tasks tasks;
  const auto near = tasks.add(Lane::read, {1, 3, 0}), far = tasks.add(Lane::read, {1, 6, 2});
  tasks.add(Lane::compute, {}, {{near}, {far}});
  EXPECT_EQ(tasks.wait(4, 6), (std::map<Cause, double>{{read_of(2), 2}}));
}

TEST(Waits, WhatFedAnUpdateHasItsOwnPart) {
  Tasks tasks;
  const auto read = tasks.add(Lane::read, {0, 5, 1});
  const auto update = tasks.add(Lane::update, {6, 8}, {{read}});  // from 5 to 6 its lane was at others
  tasks.add(Lane::compute, {}, {{update}});
  EXPECT_EQ(tasks.wait(2, 8), (std::map<Cause, double>{{read_of(1), 3}, {kUpdateLane, 3}}));
}

TEST(Waits, AWriteThatKeptItsMemoryDelaysTheRead) {
  Tasks tasks;
  const auto write = tasks.add(Lane::write, {0, 4, 1});
  const auto read = tasks.add(Lane::read, {4, 7, 0}, {{write}});
  tasks.add(Lane::compute, {}, {{read}});
  EXPECT_EQ(tasks.wait(3, 7), (std::map<Cause, double>{{write_of(1), 1}, {read_of(0), 3}}));
}

TEST(Waits, TheInstanceBeforeCounts) {
  Tasks tasks;
  const auto write = tasks.add(Lane::write, {}, {});
  tasks.was(write, {2, 5, 3});
  const auto read = tasks.add(Lane::read, {5, 6, 0}, {{write, true}});
  tasks.add(Lane::compute, {}, {{read}});
  EXPECT_EQ(tasks.wait(4, 6), (std::map<Cause, double>{{write_of(3), 1}, {read_of(0), 1}}));
}

TEST(Waits, SkippedTasksAreLookedThrough) {
  Tasks tasks;
  const auto read = tasks.add(Lane::read, {1, 4, 1});
  const auto skipped = tasks.add(Lane::update, {}, {{read}});
  tasks.add(Lane::compute, {}, {{skipped}});
  EXPECT_EQ(tasks.wait(2, 4), (std::map<Cause, double>{{read_of(1), 2}}));
}

TEST(Waits, UpdatesOfSeveralNodesAreApart) {
  Tasks tasks;
  const auto first = tasks.add(Lane::update, {0, 3}, {}, 0), second = tasks.add(Lane::update, {3, 5}, {{first}}, 1);
  tasks.add(Lane::compute, {}, {{first}, {second}});
  EXPECT_EQ(tasks.wait(1, 5), (std::map<Cause, double>{{{Lane::update, 0}, 2}, {{Lane::update, 1}, 2}}));
}

TEST(Waits, ByLaneTheyAreSums) {
  Tasks tasks;
  const auto one = tasks.add(Lane::read, {0, 2, 0}), other = tasks.add(Lane::read, {2, 3, 1}, {{one}});
  tasks.add(Lane::compute, {}, {{other}});
  EXPECT_EQ(tasks.wait(0, 3), (std::map<Cause, double>{{read_of(0), 2}, {read_of(1), 1}}));
  EXPECT_EQ(Waits().list_by_lane(), (std::map<std::string, double>{{"read", 0}, {"update", 0}, {"write", 0}}));
}

}  // namespace
}  // namespace spillway::execute
