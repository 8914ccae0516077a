#include "spillway/journal/flushes.h"

#include <gtest/gtest.h>

namespace spillway::journal {
namespace {

constexpr PathSet kFirst = 1, kSecond = 2, kBoth = 3;

/// Flushes a path from its start to its end.
void flush(Flushes& flushes, std::uint32_t path) {
  EXPECT_TRUE(flushes.start(path));
  flushes.finish(path);
}

TEST(FlushesTest, AFlushCoversWhatWasWrittenBeforeItStarted) {
  Flushes flushes(1);
  const Tick before = flushes.written(kFirst);
  flushes.want(kFirst, before);
  EXPECT_TRUE(flushes.start(0));
  const Tick meanwhile = flushes.written(kFirst);
  EXPECT_FALSE(flushes.cover(kFirst, before)) << "it has not ended";
  flushes.finish(0);
  EXPECT_TRUE(flushes.cover(kFirst, before));
  EXPECT_FALSE(flushes.cover(kFirst, meanwhile));
}

TEST(FlushesTest, WritesToSeveralPathsTakeAFlushOfEach) {
  Flushes flushes(2);
  const Tick tick = flushes.written(kBoth);
  flushes.want(kBoth, tick);
  flush(flushes, 0);
  EXPECT_TRUE(flushes.cover(kFirst, tick));
  EXPECT_FALSE(flushes.cover(kBoth, tick));
  flush(flushes, 1);
  EXPECT_TRUE(flushes.cover(kBoth, tick));
}

TEST(FlushesTest, NothingIsFlushedThatNobodyWants) {
  Flushes flushes(2);
  flushes.written(kBoth);
  EXPECT_FALSE(flushes.start(0));
  flushes.want_all();
  flush(flushes, 0);
  EXPECT_FALSE(flushes.start(0)) << "it was done";
  flush(flushes, 1);
}

TEST(FlushesTest, OneFlushOfAPathRunsAtATime) {
  Flushes flushes(1);
  flushes.want(kFirst, flushes.written(kFirst));
  EXPECT_TRUE(flushes.start(0));
  flushes.want(kFirst, flushes.written(kFirst));
  EXPECT_FALSE(flushes.start(0));
  flushes.finish(0);
  flush(flushes, 0);
}

TEST(FlushesTest, AFlushWaitsWhileItsPathIsHeld) {
  Flushes flushes(2);
  flushes.want(kBoth, flushes.written(kBoth));
  flushes.hold(0);
  flushes.hold(0);
  EXPECT_FALSE(flushes.start(0));
  EXPECT_TRUE(flushes.start(1));
  flushes.let_go(0);
  EXPECT_FALSE(flushes.start(0));
  flushes.let_go(0);
  EXPECT_TRUE(flushes.start(0));
}

TEST(FlushesTest, DirtyPathsAreThoseWithWritesThatNoFlushCovers) {
  Flushes flushes(2);
  EXPECT_EQ(flushes.dirty(), 0U);
  flushes.written(kSecond);
  EXPECT_EQ(flushes.dirty(), kSecond);
  flushes.want_all();
  flush(flushes, 1);
  EXPECT_EQ(flushes.dirty(), 0U);
}

TEST(FlushesTest, AMarkIsCoveredByLaterFlushesAlone) {
  Flushes flushes(1);
  flushes.want(kFirst, flushes.written(kFirst));
  EXPECT_TRUE(flushes.start(0));
  const Tick mark = flushes.mark();
  flushes.finish(0);
  EXPECT_FALSE(flushes.cover(kFirst, mark));
  flushes.want(kFirst, mark);
  flush(flushes, 0);
  EXPECT_TRUE(flushes.cover(kFirst, mark));
}

TEST(FlushesTest, PathsThatNobodyHasSeenAreAllFlushed) {
  Flushes flushes(2);
  flushes.want_unseen();
  EXPECT_EQ(flushes.dirty(), kBoth);
  flush(flushes, 0);
  flush(flushes, 1);
  EXPECT_EQ(flushes.dirty(), 0U);
}

}  // namespace
}  // namespace spillway::journal
