// Updates of trained pieces that wait for a pass to ask: which of them may, and what a schedule says of them.
#include "spillway/plan/step/waiting_updates.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan::step {
namespace {

class WaitingUpdatesOfAStep : public ::testing::Test {
 protected:
  explicit WaitingUpdatesOfAStep(const optim::Descriptor* optimizer = &optim::adamw)
      : description_(test::describe(shape_with(optimizer))), layout_(description_.layout()) {}

  [[nodiscard]] static test::Shape shape_with(const optim::Descriptor* optimizer) {
    test::Shape out{.layers = 2, .experts = 4, .trains_experts = true, .asked = 0.25};
    out.optimizer = optimizer;
    return out;
  }
  [[nodiscard]] Index find_expert() const {
    const auto& chunks = layout_.chunks();
    const auto it = std::ranges::find_if(chunks, [](const state::Chunk& chunk) { return chunk.asked < 1; });
    return static_cast<Index>(it - chunks.begin());
  }
  [[nodiscard]] Schedule schedule(bool in_memory, const Redo& redo = {}) const {
    const auto placed = test::placement_of(layout_, {in_memory, in_memory, in_memory, true});
    return make_schedule(description_, layout_, placed, {}, redo);
  }

  const Description description_;
  const state::Layout layout_;
};

TEST_F(WaitingUpdatesOfAStep, AreThoseOfExpertsAlone) {
  const auto out = schedule(false);
  for (Index c = 0; c < layout_.chunks().size(); ++c) {
    EXPECT_EQ(out.update_waits(c), layout_.chunks()[c].asked < 1) << c;
  }
}

TEST_F(WaitingUpdatesOfAStep, BeginWhenTheForwardPassAsksAndEndBeforeTheBackwardPass) {
  const auto expert = find_expert();
  for (const bool in_memory : {false, true}) {
    const auto out = schedule(in_memory);
    const auto update = out.update_task[expert];
    const auto reads = [&](const Pass& pass) { return pass.block == layout_.chunks()[expert].block; };
    const auto forward = std::ranges::find_if(out.passes, reads);
    const auto backward = std::find_if(forward + 1, out.passes.end(), reads);
    const auto needs_update = [&](const Pass& pass) {
      return std::ranges::any_of(out.tasks[pass.task].needs, [&](const auto& it) { return it.task == update; });
    };
    EXPECT_EQ(std::ranges::count(forward->asks, update), 1);
    EXPECT_FALSE(needs_update(*forward));
    EXPECT_TRUE(needs_update(*backward));
  }
}

TEST_F(WaitingUpdatesOfAStep, MoveBytesInTheStepsThatAskAndInThoseAfterThem) {
  const auto expert = find_expert();
  const auto out = schedule(false);
  std::size_t transfers = 0;
  for (const auto& task : out.tasks) {
    if (task.op != Op::transfer || task.what.index != expert) continue;
    const auto& kind = traits(task.what.kind);
    if (kind.numbered != Numbered::by_chunk) continue;
    ++transfers;
    const bool is_both = task.when.waits();  // 1 - (1 - 1/4)^2
    EXPECT_DOUBLE_EQ(task.when.share, is_both ? 0.4375 : 0.25);
  }
  EXPECT_GE(transfers, 6U);
}

TEST_F(WaitingUpdatesOfAStep, DoNotWaitForDurableSteps) {
  const auto out = schedule(false, {.gradients = true, .period = 2});
  EXPECT_FALSE(out.update_waits(find_expert()));
}

class WaitingUpdatesOfMuon : public WaitingUpdatesOfAStep {
 protected:
  WaitingUpdatesOfMuon() : WaitingUpdatesOfAStep(&optim::muon) {}
};

TEST_F(WaitingUpdatesOfMuon, AreThoseThatTakeElementByElement) {
  const auto out = schedule(false);
  for (Index c = 0; c < layout_.chunks().size(); ++c) {
    const auto& chunk = layout_.chunks()[c];
    EXPECT_EQ(out.update_waits(c), chunk.asked < 1 && !chunk.whole) << c;
  }
}

}  // namespace
}  // namespace spillway::plan::step
