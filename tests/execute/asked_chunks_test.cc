// Chunks that passes ask for: their updates are due once, in the instance that asks or in the one after it.
#include "spillway/execute/asked_chunks.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

namespace spillway::execute {
namespace {

using plan::OnlyIf;
using plan::StepFacts;

/// Each chunk has left out an update, and what was taken of whom, with a gradient or without.
class Left : public UpdateWork {
 public:
  std::size_t slices(plan::Index /*chunk*/) const override { return 0; }
  void save(plan::Index /*chunk*/, std::size_t /*slice*/) override {}
  void prepare(plan::Index /*chunk*/, bool /*early*/) override {}
  std::size_t tiles(plan::Index /*chunk*/, std::size_t /*part*/) const override { return 0; }
  void run(plan::Index /*chunk*/, std::size_t /*part*/, std::size_t /*tile*/, bool /*early*/) override {}
  bool take_updates(plan::Index chunk, bool has_gradient) override {
    taken.emplace_back(chunk, has_gradient);
    return std::exchange(left[chunk], false);
  }

  std::array<bool, 3> left{true, true, true};
  std::vector<std::pair<plan::Index, bool>> taken;
};

/// The updates of chunks 0 and 1 wait, and that of 2 does not.
plan::Schedule schedule_of_three() {
  plan::Schedule out;
  out.add_chunks(3);
  for (plan::Index c = 0; c < 3; ++c) {
    out.update_task[c] = c;
    out.tasks.push_back({.op = plan::Op::update,
                         .lane = plan::Lane::update,
                         .what = {plan::ObjectKind::chunk, c},
                         .when = {.phase = plan::Phase::update, .only = c < 2 ? OnlyIf::due : OnlyIf::always}});
  }
  return out;
}

class AskedChunksTest : public ::testing::Test {
 protected:
  AskedChunksTest() {
    before.resize(3);
    now.resize(3);
  }

  const plan::Schedule schedule = schedule_of_three();
  Left work;
  AskedChunks before, now;
};

TEST_F(AskedChunksTest, UpdateIsDueWhenAPassAsks) {
  now.begin(schedule, {.update = true}, before, work);
  EXPECT_FALSE(now.is_due(0));
  EXPECT_TRUE(now.holds(schedule.tasks[0], {}));
  EXPECT_FALSE(now.holds(schedule.tasks[2], {}));
  now.ask(schedule, 0, work);
  now.ask(schedule, 2, work);
  EXPECT_TRUE(now.is_asked(0) && now.is_due(0));
  EXPECT_FALSE(now.is_asked(1) || now.is_due(1) || now.is_due(2));
  EXPECT_EQ(work.taken, (std::vector<std::pair<plan::Index, bool>>{{0, false}}));
}

TEST_F(AskedChunksTest, UpdateWithAGradientIsDueFromTheStart) {
  before.ask(schedule, 1, work);
  work.left[1] = true;
  now.begin(schedule, {.update = true}, before, work);
  EXPECT_TRUE(now.was_asked(1) && now.is_due(1));
  EXPECT_FALSE(now.is_asked(1));
  EXPECT_FALSE(now.holds(schedule.tasks[1], {}));
  EXPECT_EQ(work.taken.back(), std::make_pair(plan::Index{1}, true));
}

TEST_F(AskedChunksTest, StepThatWasSkippedLeavesNoGradient) {
  before.ask(schedule, 1, work);
  work.left[1] = true;
  now.begin(schedule, {.update = false}, before, work);
  EXPECT_FALSE(now.was_asked(1) || now.is_due(1));
}

TEST_F(AskedChunksTest, InstanceWithoutPassesHasAllUpdatesThatAreLeft) {
  work.left[0] = false;
  const StepFacts alone{.passes = false, .backward = false, .catches_up = true};
  now.begin(schedule, alone, before, work);
  EXPECT_FALSE(now.is_due(0));
  EXPECT_TRUE(now.is_due(1));
  EXPECT_FALSE(now.holds(schedule.tasks[0], alone));
}

}  // namespace
}  // namespace spillway::execute
