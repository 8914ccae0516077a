// A step on the machine: its calls in order and out of order, and what they leave.
#include "spillway/execute/step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using test::fill;
using test::kUpdate;
using test::masters;
using test::Planned;
using test::run_passes;
using test::train_step;
using test::whole_step;

test::PlanOptions all_in_memory() {
  return {.placement = {1, 1, 1, 1}, .durability = plan::Durability::none, .paths = 0};
}

class StepTest : public ::testing::Test {
 protected:
  explicit StepTest(const test::PlanOptions& options = all_in_memory())
      : planned(options), run(planned.run_plan(), planned.volumes(), 2, {}) {
    fill(run, planned);
  }

  const Planned planned;
  execute::Run run;
  Step& step = run.step();
};

TEST_F(StepTest, HasANormAndADecisionThatEndItTogether) {
  const auto micro_batches = static_cast<double>(planned.description.micro_batches);
  const auto squares = static_cast<double>(planned.layout.parameters()) * std::pow(0.5 * micro_batches, 2);
  const auto once = train_step(run, planned);
  EXPECT_EQ(once.grad_norm, std::sqrt(squares));
  EXPECT_EQ(once.step, 1);
  step.begin(whole_step(planned));
  run_passes(step, planned);
  const auto norm = step.norm();
  EXPECT_EQ(norm.sum, squares);
  const auto twice = step.decide({norm.sum * 4}, kUpdate);  // two processes more have as much together
  EXPECT_EQ(twice.grad_norm, 2 * once.grad_norm);
  EXPECT_LT(twice.clip, once.clip);
  EXPECT_EQ(twice.step, 2);
  EXPECT_GT(twice.seconds, 0);
}

TEST_F(StepTest, RefusesCallsOutOfOrder) {
  EXPECT_ERROR(static_cast<void>(step.next_pass()), ErrorCode::bad_input, "next_pass() is out of order");
  EXPECT_ERROR(step.end(kUpdate), ErrorCode::bad_input, "end_step() is out of order");
  EXPECT_ERROR(static_cast<void>(step.norm()), ErrorCode::bad_input, "the norm is out of order");
  EXPECT_ERROR(step.end_pass(), ErrorCode::bad_input, "without a pass");
  step.begin(whole_step(planned));
  EXPECT_ERROR(step.begin(whole_step(planned)), ErrorCode::bad_input, "begin_step() is out of order");
  EXPECT_ERROR(step.settle(), ErrorCode::bad_input, "is out of order");
  EXPECT_ERROR(step.end(kUpdate), ErrorCode::bad_input, "before the last pass has ended");
  EXPECT_ERROR(step.decide({1}, kUpdate), ErrorCode::bad_input, "the decision is out of order");
  run_passes(step, planned);
  EXPECT_ERROR(step.begin(whole_step(planned)), ErrorCode::bad_input, "begin_step() is out of order");
  EXPECT_NO_THROW(step.end(kUpdate)) << "nothing of it has changed anything";
}

TEST_F(StepTest, RefusesWhatThePlanHasNoRoomForAndStaysAsItWas) {
  auto none = whole_step(planned), large = whole_step(planned);
  none.counts.clear();
  large.counts.front() += planned.description.tokens;
  EXPECT_ERROR(step.begin(none), ErrorCode::bad_input, "a step of 0 micro-batches");
  EXPECT_ERROR(step.begin(large), ErrorCode::bad_input, "the plan holds");
  EXPECT_EQ(train_step(run, planned).step, 1);
}

TEST_F(StepTest, SkipsWhatIsNotFinite) {
  const auto before = masters(run, planned);
  const auto skipped = train_step(run, planned, false);
  EXPECT_TRUE(skipped.skipped);
  EXPECT_EQ(skipped.step, 0);
  EXPECT_EQ(masters(run, planned), before);
  EXPECT_FALSE(train_step(run, planned).skipped);
  EXPECT_NE(masters(run, planned), before);
}

TEST_F(StepTest, EvaluatesWithoutChangingAnything) {
  train_step(run, planned);
  const auto before = masters(run, planned);
  const auto position = step.protocol().position();
  step.begin(whole_step(planned, false));
  std::size_t passes = 0;
  while (const auto pass = step.next_pass()) {
    EXPECT_EQ(pass->kind, plan::PassKind::forward);
    ++passes;
    step.end_pass();
  }
  EXPECT_EQ(passes, planned.layout.blocks().size());
  EXPECT_EQ(step.end({}).step, 1);
  EXPECT_EQ(step.protocol().position(), position);
  EXPECT_EQ(masters(run, planned), before);
}

class EarlyStepTest : public StepTest {
 protected:
  EarlyStepTest() : StepTest(early()) {}
  static test::PlanOptions early() {
    auto out = all_in_memory();
    out.early = true;
    return out;
  }
  StepResult train(std::optional<StepUpdate> expected, const StepUpdate& given) {
    auto begin = whole_step(planned);
    begin.update = expected;
    step.begin(begin);
    run_passes(step, planned);
    return step.end(given);
  }
};

TEST_F(EarlyStepTest, ComesToTheSameWhateverWasPredicted) {
  auto plain = kUpdate;
  plain.max_grad_norm = 0;
  auto other = plain;
  other.learning_rate *= 2;
  execute::Run late(planned.run_plan(), planned.volumes(), 1, {});
  fill(late, planned);
  for (const auto& expected : {std::optional(plain), std::optional(other), std::optional<StepUpdate>()}) {
    const auto found = train(expected, plain);
    EXPECT_EQ(found.undone, expected && expected->learning_rate == plain.learning_rate ? 0 : found.early);
    if (!expected) {
      EXPECT_EQ(found.early, 0U);
    }
    late.step().begin(whole_step(planned));
    run_passes(late.step(), planned);
    late.step().end(plain);
    EXPECT_EQ(masters(run, planned), masters(late, planned));
  }
}

class DurableStepTest : public StepTest {
 protected:
  DurableStepTest() : StepTest(test::PlanOptions{}) {}
};

TEST_F(DurableStepTest, CommitsOnce) {
  step.commit("loaded");
  EXPECT_ERROR(step.commit("again"), ErrorCode::bad_input, "commit() is out of order: a step is committed");
  train_step(run, planned);
  step.commit("one");
  EXPECT_ERROR(step.commit("again"), ErrorCode::bad_input, "commit() is out of order");
  step.commit_unless_done("again");
  step.settle();
  EXPECT_EQ(step.protocol().state(), StepState::publish);
}

TEST_F(DurableStepTest, CommitsWhatNobodyHasBeforeTheNextStep) {
  train_step(run, planned);
  train_step(run, planned);
  EXPECT_EQ(step.protocol().commitment().at.step, 2U);
  EXPECT_EQ(step.protocol().state(), StepState::decide);
}

}  // namespace
}  // namespace spillway::execute
