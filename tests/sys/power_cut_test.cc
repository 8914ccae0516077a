// The promises of the ring with a power cut: what it says of a file may be there after a cut, and nothing else.
#include "spillway/sys/power_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "spillway/sys/faulty_ring.h"
#include "spillway/sys/mapping.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::sys {
namespace {

constexpr Bytes kSector = 512;
constexpr Bytes kSize = 64 * KiB;
constexpr std::uint32_t kWritten = 8 * KiB;
constexpr std::byte kOld{1};

using Image = std::vector<std::byte>;

/// A file full of kOld, and a ring on it.
class Drive {
 public:
  Drive(const std::filesystem::path& path, const std::shared_ptr<PowerCut>& power, const RingFactory& inner)
      : file_(path, {.write = true, .create = true}) {
    file_.write(Image(kSize, kOld), 0);
    ring_ = power_cut(inner, power)(file_, 8);
  }

  void write(std::uint64_t tag, Bytes offset, std::byte value, std::uint32_t bytes = kWritten) {
    const auto memory = memory_.span().subspan(tag * kWritten, bytes);
    std::ranges::fill(memory, value);
    ring_->submit({Operation::write, memory.data(), bytes, offset, tag});
  }
  void read(std::uint64_t tag, Bytes offset) {
    ring_->submit({Operation::read, memory_.span().data() + tag * kWritten, kWritten, offset, tag});
  }
  void sync(std::uint64_t tag) { ring_->submit({Operation::sync, nullptr, 0, 0, tag}); }
  /// Results by tag of the next `count` completions.
  std::map<std::uint64_t, std::int32_t> collect(std::size_t count) {
    std::map<std::uint64_t, std::int32_t> results;
    std::vector<Completion> batch(8);
    while (results.size() < count) {
      const std::size_t got = ring_->wait(batch);
      for (std::size_t i = 0; i < got; ++i) results[batch[i].tag] = batch[i].result;
    }
    return results;
  }
  /// A write that has completed.
  void put(Bytes offset, std::byte value) {
    write(0, offset, value);
    collect(1);
  }
  void flush() {
    sync(0);
    collect(1);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] std::byte memory(std::uint64_t tag) const { return memory_.span()[tag * kWritten]; }

 private:
  File file_;
  Mapping memory_{8 * kWritten};
  std::unique_ptr<Ring> ring_;
};

class PowerCutTest : public ::testing::Test {
 protected:
  [[nodiscard]] Image image(std::uint64_t seed) const { return power_->image(drive_.path(), seed).whole(); }
  /// The values in one piece of an image, each sector being of one value.
  static std::set<std::byte> values(const Image& image, Bytes offset) {
    std::set<std::byte> out;
    for (Bytes sector = 0; sector < kWritten; sector += kSector) {
      const auto first = image.begin() + static_cast<std::ptrdiff_t>(offset + sector);
      EXPECT_TRUE(std::all_of(first, first + kSector, [&](std::byte value) { return value == *first; }));
      out.insert(*first);
    }
    return out;
  }
  static std::set<std::byte> only(std::byte value) { return {value}; }

  spillway::testing::TemporaryDirectory directory_;
  std::shared_ptr<PowerCut> power_ = std::make_shared<PowerCut>();
  std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  Drive drive_{directory_.path() / "a", power_, faulty(make_thread_ring, faults_)};
};

TEST_F(PowerCutTest, WhatTheFileHeldIsDurable) {
  for (const std::uint64_t seed : {PowerCut::kNothing, std::uint64_t{1}, PowerCut::kEverything}) {
    EXPECT_EQ(image(seed), Image(kSize, kOld));
  }
}

TEST_F(PowerCutTest, ACompletedWriteMayBeLostOrThereOrTornAtSectors) {
  drive_.put(kWritten, std::byte{2});
  EXPECT_EQ(values(image(PowerCut::kNothing), kWritten), only(kOld));
  EXPECT_EQ(values(image(PowerCut::kEverything), kWritten), only(std::byte{2}));
  std::set<std::set<std::byte>> outcomes;
  std::set<std::string> images;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    outcomes.insert(values(image(seed), kWritten));
    const auto bytes = image(seed);
    images.emplace(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    EXPECT_EQ(values(image(seed), 0), only(kOld));
    EXPECT_EQ(values(image(seed), 2 * kWritten), only(kOld));
  }
  EXPECT_EQ(outcomes, (std::set<std::set<std::byte>>{{kOld}, {std::byte{2}}, {kOld, std::byte{2}}}));
  EXPECT_GT(images.size(), 20U);
}

TEST_F(PowerCutTest, ASeedAlwaysGivesTheSame) {
  drive_.put(0, std::byte{2});
  EXPECT_EQ(image(17), image(17));
}

TEST_F(PowerCutTest, AWriteInFlightMayBeThere) {
  faults_->hold();
  drive_.write(1, 0, std::byte{2});
  EXPECT_EQ(values(image(PowerCut::kNothing), 0), only(kOld));
  EXPECT_EQ(values(image(PowerCut::kEverything), 0), only(std::byte{2}));
}

TEST_F(PowerCutTest, ACompletedSyncKeepsWhatHadCompletedBefore) {
  drive_.put(0, std::byte{2});
  drive_.put(kWritten, std::byte{3});
  drive_.flush();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(values(image(seed), 0), only(std::byte{2}));
    EXPECT_EQ(values(image(seed), kWritten), only(std::byte{3}));
  }
}

TEST_F(PowerCutTest, ASyncKeepsNothingThatWasInFlightWhenItBegan) {
  drive_.put(0, std::byte{2});
  drive_.write(1, kWritten, std::byte{3});
  drive_.sync(2);
  drive_.write(3, 2 * kWritten, std::byte{4});
  for (const auto& [tag, result] : drive_.collect(3)) EXPECT_GE(result, 0) << tag;
  const Image least = image(PowerCut::kNothing);
  EXPECT_EQ(values(least, 0), only(std::byte{2}));
  EXPECT_EQ(values(least, kWritten), only(kOld));
  EXPECT_EQ(values(least, 2 * kWritten), only(kOld));
  drive_.flush();
  EXPECT_EQ(image(PowerCut::kNothing), image(PowerCut::kEverything));
}

TEST_F(PowerCutTest, ASyncThatHasNotCompletedKeepsNothing) {
  drive_.put(0, std::byte{2});
  drive_.sync(1);
  EXPECT_EQ(values(image(PowerCut::kNothing), 0), only(kOld));
  power_->cut_after(power_->events());
  EXPECT_EQ(drive_.collect(1).at(1), -EIO);
  EXPECT_EQ(values(image(PowerCut::kNothing), 0), only(kOld));
}

TEST_F(PowerCutTest, OfSeveralWritesToASectorAnyMayBeThere) {
  drive_.put(0, std::byte{2});
  drive_.put(0, std::byte{3});
  EXPECT_EQ(values(image(PowerCut::kEverything), 0), only(std::byte{3}));
  std::set<std::set<std::byte>> outcomes;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) outcomes.insert(values(image(seed), 0));
  EXPECT_TRUE(outcomes.contains(only(kOld)));
  EXPECT_TRUE(outcomes.contains(only(std::byte{2})));
  EXPECT_TRUE(outcomes.contains(only(std::byte{3})));
  EXPECT_TRUE(outcomes.contains({std::byte{2}, std::byte{3}}));
  EXPECT_TRUE(outcomes.contains({kOld, std::byte{2}, std::byte{3}}));
}

TEST_F(PowerCutTest, AWriteAfterASyncMayTearWhatWasDurable) {
  drive_.put(0, std::byte{2});
  drive_.flush();
  drive_.put(0, std::byte{3});
  std::set<std::set<std::byte>> outcomes;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) outcomes.insert(values(image(seed), 0));
  EXPECT_EQ(outcomes, (std::set<std::set<std::byte>>{{std::byte{2}}, {std::byte{3}}, {std::byte{2}, std::byte{3}}}));
}

TEST_F(PowerCutTest, LaterChangesOfTheMemoryDoNotCount) {
  drive_.put(0, std::byte{2});
  drive_.put(kWritten, std::byte{9});  // from the same memory
  EXPECT_EQ(values(image(PowerCut::kEverything), 0), only(std::byte{2}));
}

TEST_F(PowerCutTest, OfAShortWriteOnlyWhatMovedIsMadeDurable) {
  faults_->shorten(Operation::write, 0, kSector);
  faults_->fail(Operation::write, kWritten, ENOSPC);
  drive_.write(1, 0, std::byte{2});
  drive_.write(2, kWritten, std::byte{3});
  const auto results = drive_.collect(2);
  EXPECT_EQ(results.at(1), static_cast<int>(kSector));
  EXPECT_EQ(results.at(2), -ENOSPC);
  drive_.flush();
  for (const std::uint64_t seed : {PowerCut::kNothing, PowerCut::kEverything}) {
    EXPECT_EQ(image(seed)[kSector - 1], std::byte{2});
    EXPECT_EQ(image(seed)[kSector], kOld);
    EXPECT_EQ(values(image(seed), kWritten), only(kOld));
  }
}

TEST_F(PowerCutTest, ReadsGiveWhatWasWritten) {
  drive_.put(0, std::byte{2});
  drive_.read(1, 0);
  EXPECT_EQ(drive_.collect(1).at(1), static_cast<int>(kWritten));
  EXPECT_EQ(drive_.memory(1), std::byte{2});
}

TEST_F(PowerCutTest, AfterTheCutNothingTakesEffectAndEverythingEnds) {
  drive_.put(0, std::byte{2});
  EXPECT_EQ(power_->events(), 2U);
  power_->cut_after(3);
  drive_.write(1, kWritten, std::byte{3});  // the last event
  EXPECT_TRUE(power_->is_cut());
  drive_.write(2, 2 * kWritten, std::byte{4});
  drive_.read(3, 0);
  drive_.sync(4);
  for (const auto& [tag, result] : drive_.collect(4)) EXPECT_EQ(result, -EIO) << tag;
  EXPECT_EQ(power_->events(), 3U);
  const Image most = image(PowerCut::kEverything);
  EXPECT_EQ(values(most, 0), only(std::byte{2}));
  EXPECT_EQ(values(most, kWritten), only(std::byte{3}));
  EXPECT_EQ(values(most, 2 * kWritten), only(kOld));
}

TEST_F(PowerCutTest, SeveralDrivesGoAtOneInstant) {
  Drive other(directory_.path() / "b", power_, make_thread_ring);
  power_->cut_after(6);
  drive_.put(0, std::byte{2});
  other.put(0, std::byte{3});
  other.flush();
  drive_.sync(1);
  EXPECT_EQ(drive_.collect(1).at(1), -EIO);
  other.write(1, kWritten, std::byte{4});
  EXPECT_EQ(other.collect(1).at(1), -EIO);
  EXPECT_EQ(values(image(PowerCut::kNothing), 0), only(kOld));
  EXPECT_EQ(values(power_->image(other.path(), PowerCut::kNothing).whole(), 0), only(std::byte{3}));
}

TEST_F(PowerCutTest, SaysThatItDoesNotKnowAFile) {
  EXPECT_ERROR(std::ignore = power_->image("/nowhere", 1), ErrorCode::internal, "/nowhere");
}

/// Two records of two sectors each and a commit that must not be there without them: a protocol as it should be, and
/// one without the flush before the commit.
class PowerCutProtocol : public ::testing::Test {
 protected:
  /// Whether any image of any cut has the commit and not all of the records.
  bool breaks(bool flushed) {
    const spillway::testing::TemporaryDirectory directory;
    bool broken = false;
    for (std::uint64_t point = 0;; ++point) {
      const auto power = std::make_shared<PowerCut>();
      Drive drive(directory.path() / std::to_string(point), power, make_thread_ring);
      power->cut_after(point);
      drive.write(1, 0, std::byte{2}, 2 * kSector);
      drive.write(2, 2 * kSector, std::byte{2}, 2 * kSector);
      drive.collect(2);
      if (flushed) drive.flush();
      drive.put(kWritten, std::byte{3});
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        const Image found = power->image(drive.path(), seed).whole();
        const auto records = std::span(found).first(4 * kSector);
        const bool whole = std::ranges::all_of(records, [](std::byte value) { return value == std::byte{2}; });
        broken = broken || (found[kWritten] == std::byte{3} && !whole);
      }
      if (!power->is_cut()) return broken;
    }
  }
};

TEST_F(PowerCutProtocol, EveryCrashPointTellsAGoodOrderFromABadOne) {
  EXPECT_FALSE(breaks(true));
  EXPECT_TRUE(breaks(false));
}

}  // namespace
}  // namespace spillway::sys
