#include "spillway/journal/pinned_check.h"

#include <gtest/gtest.h>

namespace spillway::journal {
namespace {

Piece piece(std::uint32_t place, std::uint64_t checksum) {
  return {.place = {0, place}, .bytes = 4096, .part = 0, .checksum = checksum};
}

/// Two chunks of step 8 in generation 3, and a gradient.
Recovered recovered() {
  Recovered out;
  out.last_commit = {3, true, 8};
  out.snapshots = {{{0, 8, {piece(1, 11)}}, 3, 0}, {{1, 8, {piece(2, 12)}}, 3, 0}};
  out.gradients = {{{0, 8, {piece(5, 15)}}, 3, 0}};
  return out;
}

Manifest manifest(std::uint32_t generation, std::uint64_t step, std::uint32_t first, std::uint64_t checksum) {
  Manifest out;
  out.commit.generation = generation;
  out.commit.step = step;
  out.snapshots = {{0, step, {piece(first, checksum)}}, {1, step, {piece(40 + first, 1)}}};
  return out;
}

TEST(PinnedCheckTest, CheckpointsOfWhatIsThereAreTaken) {
  const Recovered there = recovered();
  PinnedCheck check(there);
  EXPECT_EQ(check.objection(manifest(3, 8, 1, 11)), "") << "the snapshot that the run goes on from";
  EXPECT_EQ(check.objection(manifest(3, 4, 7, 20)), "");
  EXPECT_EQ(check.objection(manifest(3, 4, 7, 20)), "") << "asked about twice";
  EXPECT_EQ(check.objection(manifest(2, 30, 9, 20)), "") << "of a line that was given up";
}

TEST(PinnedCheckTest, ACheckpointNewerThanEveryCommitIsRefused) {
  const Recovered there = recovered();
  for (const auto& [generation, step] : {std::pair(3U, 9U), std::pair(4U, 1U)}) {
    PinnedCheck check(there);
    const auto wrong = check.objection(manifest(generation, step, 7, 20));
    EXPECT_NE(wrong.find("the newest commit on the storage paths is of step 8"), std::string::npos) << wrong;
  }
}

TEST(PinnedCheckTest, ACheckpointWhosePlacesWereUsedAgainIsRefused) {
  const Recovered there = recovered();
  for (const std::uint32_t place : {1U, 2U, 5U}) {
    PinnedCheck check(there);
    const auto wrong = check.objection(manifest(3, 4, place, 20));
    EXPECT_NE(wrong.find("its places used again"), std::string::npos) << wrong;
  }
  PinnedCheck check(there);
  EXPECT_EQ(check.objection(manifest(3, 4, 7, 20)), "");
  EXPECT_NE(check.objection(manifest(3, 6, 7, 21)), "") << "another checkpoint's";
}

}  // namespace
}  // namespace spillway::journal
