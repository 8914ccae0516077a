#include "spillway/journal/commit.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/journal/samples.h"

namespace spillway::journal {
namespace {

using testing::kIdentity;
using testing::some_commit;

TEST(CommitTest, ReturnsWhatWentIn) {
  const Commit in = some_commit();
  std::vector<std::byte> slot(round_up(encoded_bytes(in), 4096));
  encode(in, kIdentity, slot);
  Commit out;
  ASSERT_EQ(decode(slot, kIdentity, out), SlotState::whole);
  EXPECT_EQ(out, in);
  EXPECT_TRUE(out.used(3) && out.used(130));
  EXPECT_FALSE(out.used(4) || out.used(1000));
  EXPECT_EQ(decode(slot, kIdentity + 1, out), SlotState::foreign);
}

TEST(CommitTest, ACommitOfAShardSaysOfWhichLineItIs) {
  Commit in = some_commit();
  const auto before = encoded_bytes(in);
  in.line = 0x0123456789abcdef;
  EXPECT_EQ(encoded_bytes(in), before + sizeof in.line) << "which one without does not have";
  std::vector<std::byte> slot(round_up(encoded_bytes(in), 4096));
  encode(in, kIdentity, slot);
  Commit out;
  ASSERT_EQ(decode(slot, kIdentity, out), SlotState::whole);
  EXPECT_EQ(out, in);
  JournalSpec spec;
  spec.gradients.resize(131);
  EXPECT_FALSE(fits(in, spec)) << "in a world of one";
  spec.world = 4;
  EXPECT_TRUE(fits(in, spec));
  EXPECT_LE(encoded_bytes(in), most_commit_bytes(spec));
}

TEST(CommitTest, EveryBitIsGuarded) {
  const Commit in = some_commit();
  std::vector<std::byte> slot(round_up(encoded_bytes(in), 4096));
  encode(in, kIdentity, slot);
  Commit out;
  for (std::size_t bit = 0; bit < encoded_bytes(in) * 8; ++bit) {
    slot[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    ASSERT_EQ(decode(slot, kIdentity, out), SlotState::damaged) << bit;
    slot[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
}

TEST(CommitTest, KnowsItsLine) {
  const Commit c = some_commit();
  EXPECT_TRUE(c.in_line(7, 12) && c.in_line(2, 4) && c.in_line(4, 9));
  EXPECT_FALSE(c.in_line(7, 13) || c.in_line(2, 5) || c.in_line(5, 1) || c.in_line(8, 1));
}

TEST(CommitTest, RestartsAtOneStepAreOneAncestor) {
  Commit c;
  c.generation = 1;
  c.step = 5;
  for (std::uint32_t restart = 0; restart < 1000; ++restart) {
    c.ancestors = continue_line(c, {3});
    ++c.generation;
  }
  EXPECT_EQ(c.ancestors, (std::vector<Ancestor>{{1, 1000, 5}}));
}

TEST(CommitTest, ForgetsAncestorsThatNoRecordNeeds) {
  Commit c = some_commit();
  EXPECT_EQ(continue_line(c, {9}), (std::vector<Ancestor>{{4, 4, 9}, {7, 7, 12}}));
  EXPECT_EQ(continue_line(c, {12}), (std::vector<Ancestor>{{7, 7, 12}}));
  EXPECT_EQ(continue_line(c, {12, {4}}), (std::vector<Ancestor>{{4, 4, 9}, {7, 7, 12}}))
      << "a constant snapshot is of it";
}

TEST(CommitTest, PruningKeepsWhatARecordNeeds) {
  std::vector<Ancestor> line = some_commit().ancestors;
  prune(line, {.oldest = 5});
  EXPECT_EQ(line, (std::vector<Ancestor>{{4, 4, 9}}));
  prune(line, {.oldest = 100, .generations = {4}});
  EXPECT_EQ(line.size(), 1U);
  prune(line, {.oldest = 100, .generations = {5}});
  EXPECT_TRUE(line.empty());
}

TEST(CommitTest, FitsARunThatCanHaveIt) {
  JournalSpec spec;
  spec.gradients.resize(131);
  spec.payload = 1000;
  EXPECT_TRUE(fits(some_commit(), spec));
  EXPECT_LE(encoded_bytes(some_commit()), most_commit_bytes(spec));
  spec.payload = 999;
  EXPECT_FALSE(fits(some_commit(), spec));
  spec.payload = 1000;
  spec.gradients.resize(128);
  EXPECT_FALSE(fits(some_commit(), spec)) << "it used gradient 130";
  spec.gradients.resize(131);
  Commit long_line = some_commit();
  long_line.ancestors.resize(kMostAncestors + 1);
  EXPECT_FALSE(fits(long_line, spec));
}

TEST(CommitTest, AppliedIsTheLastStepThatChangedAnything) {
  Commit commit = some_commit();
  EXPECT_EQ(commit.applied(), 10U);
  commit.skipped = false;
  EXPECT_EQ(commit.applied(), 12U);
}

}  // namespace
}  // namespace spillway::journal
