// The pair of one matrix from step to step.
#include "spillway/subspace/pair_state.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace spillway::subspace {
namespace {

Projectors make_projectors(float value) {
  Projectors out{Projector(8, 4, 2), Projector(12, 4, 2)};
  std::ranges::fill(out.p.values(), value);
  return out;
}

PairState make_state(double refits) {
  PairState out{.projectors = make_projectors(1), .next = make_projectors(2)};
  out.kept = out.record = {.refits = refits, .begun = 5};
  return out;
}

TEST(PairState, LaterPairIsThatOfTheNextStepWhenItsStepWasApplied) {
  auto it = make_state(1);
  it.begin();
  it.open();
  it.begin_later(false, 20);
  it.end(true);
  EXPECT_EQ(it.projectors.p.values()[0], 1.0F);
  it.open();
  EXPECT_EQ(it.projectors.p.values()[0], 2.0F);
  EXPECT_EQ(it.version, 2U);
  EXPECT_EQ(it.kept.refits, 2);
  EXPECT_EQ(it.before.refits, 1);
  it.open();
  EXPECT_EQ(it.projectors.p.values()[0], 2.0F) << "taken over once";
}

TEST(PairState, SkippedStepForgetsWhatItRefitted) {
  auto it = make_state(1);
  it.open();
  it.begin_later(false, 20);
  it.end(false);
  it.open();
  EXPECT_EQ(it.projectors.p.values()[0], 1.0F);
  EXPECT_EQ(it.record, it.kept);
  EXPECT_EQ(it.kept.refits, 1);
}

TEST(PairState, MomentsBeginWithTheSecondPairAndWhereTheyAreToBeginAnew) {
  auto it = make_state(1);
  it.begin_later(false, 20);
  EXPECT_EQ(it.record.begun, 5);
  it.begin_later(true, 20);
  EXPECT_EQ(it.record.begun, 21);
  auto first = make_state(0);
  first.begin_later(false, 20);
  EXPECT_EQ(first.record.begun, 21);
}

TEST(PairState, ReceiverHasWhatTheSenderHas) {
  auto from = make_state(1);
  from.begin_later(false, 20);
  std::ranges::fill(from.next.q.values(), 7.0F);
  PairState to{.projectors = make_projectors(1), .next = make_projectors(0)};
  to.kept = to.record = from.kept;
  const auto sent = from.list_exchanged(true), received = to.list_exchanged(false);
  ASSERT_EQ(sent.size(), received.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    ASSERT_EQ(sent[i].size(), received[i].size());
    std::ranges::copy(sent[i], received[i].begin());
  }
  to.receive();
  EXPECT_TRUE(to.refitted);
  EXPECT_EQ(to.record, from.record);
  EXPECT_EQ(to.next.p.values()[0], 2.0F);
  EXPECT_EQ(to.next.q.values()[0], 7.0F);
}

TEST(PairState, RecordWithoutANewPairRefitsNothing) {
  auto it = make_state(3);
  it.told = it.kept;
  it.receive();
  EXPECT_FALSE(it.refitted);
  EXPECT_FALSE(it.looked);
}

}  // namespace
}  // namespace spillway::subspace
