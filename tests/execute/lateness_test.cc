// What a process is late for is what runs there now, not what waits for it.
#include "spillway/execute/lateness.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/execute/ranks.h"

namespace spillway::execute {
namespace {

using plan::Index;
using plan::kNone;
using plan::Lane;
using plan::Task;

/// 0: a read; 1: a pass that needs it; 2: a pass after that; 3: a task of the network after 2; 4: an update that needs
/// the read of the step before; 5: a task of the network after 4.
plan::Schedule schedule() {
  plan::Schedule out;
  out.tasks.resize(6);
  out.tasks[0].lane = Lane::read;
  out.tasks[1].needs = {{0, false}};
  out.tasks[2].needs = {{1, false}};
  out.tasks[3].lane = out.tasks[5].lane = Lane::network;
  out.tasks[3].needs = {{2, false}};
  out.tasks[4].lane = Lane::update;
  out.tasks[4].needs = {{0, true}};
  out.tasks[5].needs = {{4, false}};
  return out;
}

using Flags = std::vector<std::uint8_t>;

TEST(Lateness, IsOfWhatRuns) {
  const auto of = schedule();
  const Flags all(6, 1);
  Flags now(6, 0);
  EXPECT_EQ(cause_of(of, {now, all}, 3, 1), 0U) << "the read that the passes wait for";
  now[0] = 1;
  EXPECT_EQ(cause_of(of, {now, all}, 3, 1), 1U) << "the pass that the caller computes";
  now[1] = 1;
  EXPECT_EQ(cause_of(of, {now, all}, 3, 2), 2U);
  now[2] = 1;
  EXPECT_EQ(cause_of(of, {now, all}, 3, kNone), 3U) << "nothing";
}

TEST(Lateness, IsOfThePassBeforeOneThatCouldBegin) {
  auto of = schedule();
  of.tasks[2].needs.clear();
  const Flags all(6, 1), now(6, 0);
  EXPECT_EQ(cause_of(of, {now, all}, 3, 1), 0U) << "passes run in their order";
}

TEST(Lateness, LooksIntoTheStepBefore) {
  const auto of = schedule();
  const Flags now(6, 0);
  Flags before(6, 1);
  EXPECT_EQ(cause_of(of, {now, before}, 5, kNone), 4U);
  before[0] = 0;
  EXPECT_EQ(cause_of(of, {now, before}, 5, kNone), 0U);
}

TEST(Lateness, NamesPassAndBlock) {
  const test::RankPlan rank(0, 2);
  const auto& of = rank.plan.schedule;
  for (const auto t : of.network) {
    if (of.tasks[t].op != plan::Op::scatter) continue;
    EXPECT_EQ(pass_words(of, rank.layout, of.tasks[t]).substr(0, 12), "backward of ");
  }
}

}  // namespace
}  // namespace spillway::execute
