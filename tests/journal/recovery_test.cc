#include "spillway/journal/recovery.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>

#include "tests/journal/journal_world.h"
#include "tests/sys/failing.h"

namespace spillway::journal {
namespace {

using testing::Remains;
using testing::RemainsMedia;
using testing::World;

/// A run of ten steps, at rest on its paths.
class RecoveryTest : public ::testing::Test {
 protected:
  explicit RecoveryTest(std::uint32_t paths = 2)
      : world_({.seed = 3, .paths = paths, .restarts = false, .cuts = false}) {
    EXPECT_EQ(world_.run(), "");
    remains_ = world_.live();
    random_.seed(5);
  }

  Recovered recovered(const RecoveryOptions& options = {}) {
    RemainsMedia media(remains_);
    return recover(world_.spec(), media, options);
  }
  void flip_bit(std::uint32_t path, Bytes byte, unsigned bit) {
    remains_[path].metadata[byte] ^= static_cast<std::byte>(1u << bit);
  }
  /// The 512 bytes around hold something else.
  void spoil_sector(std::uint32_t path, Bytes byte) {
    for (Bytes at = byte / 512 * 512, end = at + 512; at < end; ++at) {
      remains_[path].metadata[at] = static_cast<std::byte>(random_());
    }
  }
  Bytes any_byte(std::uint32_t path) { return random_() % remains_[path].metadata.size(); }
  /// A byte that recovery cares for: of a slot that was written.
  Bytes written_byte(std::uint32_t path) {
    for (;;) {
      const Bytes at = any_byte(path);
      if (remains_[path].metadata[at / 4096 * 4096] != std::byte{0}) return at;
    }
  }

  /// The bytes of one slot land in another one, too.
  void copy_slot(std::uint32_t path, Bytes from, Bytes to, Bytes bytes) {
    const auto begin = remains_[path].metadata.begin();
    std::copy_n(begin + static_cast<std::ptrdiff_t>(from), bytes, begin + static_cast<std::ptrdiff_t>(to));
  }
  /// Of every commit of a step, on one path or on all, nothing is there.
  void lose_commit(std::uint64_t step, std::optional<std::uint32_t> of = std::nullopt) {
    const MetadataLayout layout(world_.spec());
    for (std::uint32_t path = 0; path < remains_.size(); ++path) {
      for (std::uint32_t slot = 0; slot < kCopies * layout.commit_slots(); ++slot) {
        const Bytes at = layout.commit(slot / layout.commit_slots(), slot % layout.commit_slots());
        const auto bytes = std::span(remains_[path].metadata).subspan(at, layout.commit_bytes());
        Commit commit;
        if (of.value_or(path) != path || decode(bytes, layout.identity(), commit) != SlotState::whole) continue;
        if (commit.step == step) std::ranges::fill(bytes, std::byte{0});
      }
    }
  }

  World world_;
  std::vector<Remains> remains_;
  std::mt19937 random_;
};

class RecoveryOfOnePathTest : public RecoveryTest {
 protected:
  RecoveryOfOnePathTest() : RecoveryTest(1) {}
};

TEST_F(RecoveryTest, OneFlippedBitLosesNothing) {
  for (int i = 0; i < 1000; ++i) {
    const std::uint32_t path = random_() % 2;
    const Bytes byte = written_byte(path);
    const unsigned bit = random_() % 8;
    flip_bit(path, byte, bit);
    ASSERT_EQ(world_.check(remains_), "") << "bit " << bit << " of byte " << byte << " of path " << path;
    flip_bit(path, byte, bit);
  }
}

TEST_F(RecoveryOfOnePathTest, OneFlippedBitLosesNothing) {
  for (int i = 0; i < 1000; ++i) {
    const Bytes byte = written_byte(0);
    flip_bit(0, byte, i % 8);
    ASSERT_EQ(world_.check(remains_), "") << "byte " << byte;
    flip_bit(0, byte, i % 8);
  }
}

TEST_F(RecoveryTest, OneSpoiledSectorLosesNothing) {
  const std::vector<Remains> good = remains_;
  for (int i = 0; i < 500; ++i) {
    const std::uint32_t path = random_() % 2;
    const Bytes byte = written_byte(path);
    spoil_sector(path, byte);
    ASSERT_EQ(world_.check(remains_), "") << "byte " << byte << " of path " << path;
    remains_ = good;
  }
}

TEST_F(RecoveryTest, ManySpoiledSectorsAreNeverUsedSilently) {
  const std::vector<Remains> good = remains_;
  int refused = 0, right = 0;
  for (int i = 0; i < 600; ++i) {
    for (int n = 0; n < 1 + i / 2; ++n) {
      const std::uint32_t path = random_() % 2;
      spoil_sector(path, written_byte(path));
    }
    const std::string wrong = world_.check_any_step(remains_);
    if (wrong.empty()) {
      ++right;
    } else {
      ASSERT_EQ(wrong.substr(0, 8), "refused:") << wrong;
      ++refused;
    }
    remains_ = good;
  }
  EXPECT_GT(right, 50);
  EXPECT_GT(refused, 50);
}

TEST_F(RecoveryTest, SaysWhatIsDamagedAndWhere) {
  const MetadataLayout layout(world_.spec());
  const Recovered before = recovered();
  const std::uint32_t slot = before.snapshots[3].slot;
  const std::uint32_t path = layout.home(ObjectKind::snapshot, 3);
  const Bytes offset = layout.record(ObjectKind::snapshot, 3, 0, slot);
  flip_bit(path, offset + 70, 2);
  const Recovered r = recovered({.name = [](ObjectKind, std::uint32_t id) { return text("layer ", id); }});
  ASSERT_EQ(r.damage.size(), 1u);
  EXPECT_EQ(r.damage[0].path, path);
  EXPECT_EQ(r.damage[0].offset, offset);
  EXPECT_EQ(r.damage[0].what, text("the record of the snapshot of layer 3, copy 0, slot ", slot));
  EXPECT_EQ(r.snapshots[3].stored, before.snapshots[3].stored);
}

TEST_F(RecoveryTest, NamesTheSnapshotThatIsMissing) {
  const MetadataLayout layout(world_.spec());
  for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
    for (std::uint32_t slot = 0; slot < kSnapshotSlots; ++slot) {
      for (std::uint32_t path = 0; path < 2; ++path)
        flip_bit(path, layout.record(ObjectKind::snapshot, 1, copy, slot), 0);
    }
  }
  const RecoveryOptions options{.name = [](ObjectKind, std::uint32_t id) { return text("layer ", id); }};
  EXPECT_ERROR(recovered(options), ErrorCode::corrupt, "no whole record of the snapshot of layer 1 of step 10");
}

/// A snapshot that is damaged is made again from the one before and the gradients since.
TEST_F(RecoveryTest, NamesTheGradientThatIsMissing) {
  const MetadataLayout layout(world_.spec());
  const auto damage = [&](ObjectKind kind, std::uint32_t object, std::uint32_t slot) {
    for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
      for (std::uint32_t path = 0; path < 2; ++path) flip_bit(path, layout.record(kind, object, copy, slot), 0);
    }
  };
  damage(ObjectKind::snapshot, 1, recovered().snapshots[1].slot);
  const Recovered replaying = recovered();
  ASSERT_EQ(replaying.newest.step, 10U);
  ASSERT_FALSE(replaying.gradients.empty());
  const auto& lost = replaying.gradients.back();
  damage(ObjectKind::gradient, lost.stored.object, lost.slot);
  EXPECT_ERROR(
      recovered(), ErrorCode::corrupt,
      text("no whole record of the gradient of gradient ", lost.stored.object, " of step ", lost.stored.version));
}

TEST_F(RecoveryTest, TwoObjectsInOnePlaceAreRefused) {
  const MetadataLayout layout(world_.spec());
  const Recovered before = recovered();
  const auto& second = before.snapshots[1];
  const RecordHead head{ObjectKind::snapshot, 1, second.generation, second.stored.version};
  for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
    for (std::uint32_t path = 0; path < 2; ++path) {
      const auto at = layout.record(ObjectKind::snapshot, 1, copy, second.slot);
      encode(head, before.snapshots[0].stored.pieces, layout.identity(),
             std::span(remains_[path].metadata).subspan(at, layout.record_bytes()));
    }
  }
  EXPECT_ERROR(recovered(), ErrorCode::corrupt, "name the same piece");
}

TEST_F(RecoveryTest, ALostCommitIsNoticedByTheSnapshotsOfItsStep) {
  const MetadataLayout layout(world_.spec());
  const Recovered before = recovered();
  for (std::uint32_t path = 0; path < 2; ++path) {
    for (std::uint32_t copy = 0; copy < kCopies; ++copy) flip_bit(path, layout.commit(copy, before.newest_slot), 0);
  }
  EXPECT_ERROR(recovered(), ErrorCode::corrupt, "written only when that step is durable");
}

/// Of slots whose bytes are those of another one.
TEST_F(RecoveryTest, ARecordInAnotherSlotIsDamage) {
  const MetadataLayout layout(world_.spec());
  const Recovered before = recovered();
  const std::uint32_t slot = before.snapshots[1].slot, path = layout.home(ObjectKind::snapshot, 1);
  copy_slot(path, layout.record(ObjectKind::snapshot, 1, 0, slot), layout.record(ObjectKind::snapshot, 1, 0, 1 - slot),
            layout.record_bytes());
  const Recovered r = recovered();
  EXPECT_EQ(r.snapshots[1].slot, slot);
  ASSERT_EQ(r.damage.size(), 1u);
  EXPECT_NE(r.damage[0].what.find(text("it was written to slot ", slot)), std::string::npos) << r.damage[0].what;
  EXPECT_EQ(world_.check(remains_), "");
}

TEST_F(RecoveryOfOnePathTest, ACommitInAnotherSlotIsDamage) {
  const MetadataLayout layout(world_.spec());
  const Recovered before = recovered();
  const std::uint32_t other = (before.newest_slot + 1) % layout.commit_slots();
  for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
    copy_slot(0, layout.commit(copy, before.newest_slot), layout.commit(copy, other), layout.commit_bytes());
  }
  const Recovered r = recovered();
  EXPECT_EQ(r.newest_slot, before.newest_slot);
  ASSERT_EQ(r.damage.size(), 2u);
  EXPECT_NE(r.damage[0].what.find(text("it was written to slot ", before.newest_slot)), std::string::npos);
}

/// Records of gradients that a run writes when commits are durable of which no copy is there.
TEST_F(RecoveryTest, LostCommitsAreNoticedByTheGradientsThatCameAfterThem) {
  const MetadataLayout layout(world_.spec());
  const std::vector<Remains> good = remains_;
  const Commit newest = recovered().newest;
  const auto write = [&](std::uint32_t generation, std::uint64_t step) {
    const Piece piece{.place = {0, 0}, .bytes = 4096, .checksum = 1};
    encode({ObjectKind::gradient, 0, generation, step, 0}, {&piece, 1}, layout.identity(),
           std::span(remains_[layout.home(ObjectKind::gradient, 0)].metadata)
               .subspan(layout.record(ObjectKind::gradient, 0, 0, 0), layout.record_bytes()));
  };
  write(newest.generation, newest.step + kMostStepsAhead);
  EXPECT_EQ(recovered().newest, newest) << "which may be under way";
  for (const auto& [generation, step] : {std::pair(newest.generation, newest.step + kMostStepsAhead + 1),
                                         std::pair(newest.generation + 1, newest.step + 1)}) {
    remains_ = good;
    write(generation, step);
    EXPECT_ERROR(recovered(), ErrorCode::corrupt, "is written only when later commits are durable");
  }
}

TEST_F(RecoveryTest, APathWithoutACommitThatWasDurableThereIsStale) {
  const Recovered before = recovered();
  EXPECT_TRUE(before.stale_paths.empty());
  lose_commit(before.newest.step, 1);
  lose_commit(before.newest.step - 1, 1);
  const Recovered r = recovered();
  ASSERT_EQ(r.stale_paths.size(), 1u);
  EXPECT_EQ(r.stale_paths[0].path, 1u);
  EXPECT_EQ(r.stale_paths[0].step, before.newest.step - 2);
  ASSERT_EQ(r.damage.size(), 1u);
  EXPECT_EQ(r.damage[0].path, 1u);
  EXPECT_NE(r.damage[0].what.find("went back to an earlier state"), std::string::npos) << r.damage[0].what;
  EXPECT_EQ(r.newest, before.newest);
}

/// A path that took no more writes from some commit on has old ones for a good reason.
TEST(StalePathTest, APathWhoseWritesFailedIsNotStale) {
  int without_commits = 0;
  for (std::uint32_t seed = 1; seed < 30; ++seed) {
    World world({.seed = seed, .paths = 3, .path_fails_at = 20 + 9 * seed, .restarts = false, .cuts = false});
    ASSERT_EQ(world.run(), "");
    RemainsMedia media(world.live());
    const Recovered r = recover(world.spec(), media);
    ASSERT_TRUE(r.found);
    EXPECT_TRUE(r.stale_paths.empty()) << "seed " << seed;
    const MetadataLayout layout(world.spec());
    Commit commit;
    const auto slot =
        std::span(world.live()[0].metadata).subspan(layout.commit(0, r.newest_slot), layout.commit_bytes());
    without_commits += decode(slot, layout.identity(), commit) != SlotState::whole || commit.step < r.newest.step;
  }
  EXPECT_GT(without_commits, 5);
}

/// At whatever write a path fails: the commit that it did not take may be the last but one that the others hold.
TEST(StalePathTest, APathThatFailsAtAnyWriteIsNotStale) {
  for (std::uint32_t at = 1; at < 400; ++at) {
    World world({.seed = 3, .paths = 3, .path_fails_at = at, .restarts = false, .cuts = false});
    ASSERT_EQ(world.run(), "") << at;
    RemainsMedia media(world.live());
    EXPECT_TRUE(recover(world.spec(), media).stale_paths.empty()) << "fails at " << at;
  }
}

/// A damaged slot does not show that the path lacks the commit.
TEST_F(RecoveryTest, APathWhoseCommitIsDamagedIsNotStale) {
  const MetadataLayout layout(world_.spec());
  for (std::uint32_t slot = 0; slot < layout.commit_slots(); ++slot) {
    for (std::uint32_t copy = 0; copy < kCopies; ++copy) flip_bit(1, layout.commit(copy, slot) + 40, 0);
  }
  const Recovered r = recovered();
  EXPECT_TRUE(r.stale_paths.empty());
  EXPECT_GE(r.damage.size(), 2u);
}

/// A commit of snapshots alone is no commit to replay gradients before.
TEST(CompleteCommitTest, ALostRecordOfASnapshotIsMissed) {
  World world({.seed = 4, .paths = 1, .durability = Durability::checkpoint, .restarts = false, .cuts = false});
  ASSERT_EQ(world.run(), "");
  std::vector<Remains> remains = world.live();
  RemainsMedia media(remains);
  const Recovered before = recover(world.spec(), media);
  ASSERT_TRUE(before.found && before.newest.complete);
  const MetadataLayout layout(world.spec());
  for (std::uint32_t copy = 0; copy < kCopies; ++copy) {  // as it stood before, at an older step
    std::vector<std::byte> older(layout.record_bytes());
    const RecordHead head{ObjectKind::snapshot, 1, before.snapshots[1].generation, before.newest.applied() - 1};
    encode(head, before.snapshots[1].stored.pieces, layout.identity(), older);
    std::ranges::copy(
        older, remains[0].metadata.begin() +
                   static_cast<std::ptrdiff_t>(layout.record(ObjectKind::snapshot, 1, copy, before.snapshots[1].slot)));
    const Bytes other = layout.record(ObjectKind::snapshot, 1, copy, 1 - before.snapshots[1].slot);
    std::fill_n(remains[0].metadata.begin() + static_cast<std::ptrdiff_t>(other), layout.record_bytes(), std::byte{0});
  }
  RemainsMedia stale(remains);
  EXPECT_ERROR(static_cast<void>(recover(world.spec(), stale)), ErrorCode::corrupt,
               text("no whole record of the snapshot of chunk 1 of step ", before.newest.applied()));
}

TEST_F(RecoveryTest, RecordsOfAnotherRunDoNotCount) {
  JournalSpec other = world_.spec();
  other.run = "another run";
  RemainsMedia media(remains_);
  const Recovered r = recover(other, media);
  EXPECT_FALSE(r.found);
  EXPECT_EQ(r.newest_generation, 0u);
  EXPECT_GT(r.foreign, 10u);
}

TEST_F(RecoveryTest, WhatOnePathHasLostIsReadFromTheOther) {
  const std::vector<Remains> good = remains_;
  const Recovered before = recovered();
  for (const std::uint32_t path : {0U, 1U}) {
    std::fill(remains_[path].metadata.begin(), remains_[path].metadata.end(), std::byte{0});
    ASSERT_EQ(world_.check(remains_), "");
    const Recovered r = recovered();
    EXPECT_EQ(r.newest, before.newest);
    EXPECT_EQ(r.places, before.places);
    ASSERT_EQ(r.damage.size(), 1u);
    EXPECT_EQ(r.damage[0].path, path);
    EXPECT_EQ(r.damage[0].bytes, MetadataLayout(world_.spec()).used());
    remains_ = good;
  }
}

TEST_F(RecoveryTest, ARecordThatIsObjectedToIsADamagedOne) {
  const auto objection = [](ObjectKind kind, std::uint32_t object, std::span<const Piece>) -> std::string {
    return kind == ObjectKind::snapshot && object == 1 ? "no such place" : "";
  };
  EXPECT_ERROR(recovered({.objection = objection}), ErrorCode::corrupt, "no whole record of the snapshot of chunk 1");
  EXPECT_ERROR(recovered({.objection = objection}), ErrorCode::corrupt, ": no such place");
}

TEST_F(RecoveryTest, TheNewestStepIsReadByItself) {
  RemainsMedia media(remains_);
  EXPECT_EQ(newest_step(world_.spec(), media).step, 10);
  EXPECT_EQ(newest_step(world_.spec(), media).line, 0u);
  std::vector<Remains> empty = remains_;
  for (Remains& path : empty) std::fill(path.metadata.begin(), path.metadata.end(), std::byte{0});
  RemainsMedia nothing(empty);
  EXPECT_EQ(newest_step(world_.spec(), nothing).step, kNoStep);
}

TEST_F(RecoveryTest, AStepBeyondTheOthersDoesNotCount) {
  const Recovered whole = recovered({.at_most = 10});
  EXPECT_EQ(whole.newest.step, 10u);
  EXPECT_EQ(whole.cut_off, std::nullopt);
  EXPECT_ERROR(recovered({.at_most = kNoStep}), ErrorCode::corrupt, "but no whole commit of a step");
  EXPECT_ERROR(recovered({.at_most = 2}), ErrorCode::corrupt, "step 2 is the last that every shard has");
}

TEST_F(RecoveryTest, NothingIsFoundOnNewVolumes) {
  for (Remains& path : remains_) std::fill(path.metadata.begin(), path.metadata.end(), std::byte{0});
  const Recovered r = recovered();
  EXPECT_FALSE(r.found);
  EXPECT_TRUE(r.damage.empty() && r.places.empty());
}

/// A drive that cannot give some of its sectors.
class UnreadableMedia : public RemainsMedia {
 public:
  UnreadableMedia(const std::vector<Remains>& paths, std::uint32_t path, Bytes at)
      : RemainsMedia(paths), path_(path), at_(at) {}
  void read(std::uint32_t path, Bytes offset, std::span<std::byte> bytes) override {
    if (path == path_ && offset <= at_ && at_ < offset + bytes.size()) throw Error(ErrorCode::io, "unreadable");
    RemainsMedia::read(path, offset, bytes);
  }

 private:
  std::uint32_t path_;
  Bytes at_;
};

TEST_F(RecoveryTest, AnUnreadableSectorIsADamagedRecord) {
  const Recovered before = recovered();
  const Bytes at = MetadataLayout(world_.spec()).record(ObjectKind::snapshot, 0, 0, before.snapshots[0].slot) + 512;
  UnreadableMedia media(remains_, 0, at);
  const Recovered r = recover(world_.spec(), media);
  ASSERT_EQ(r.damage.size(), 1u);
  EXPECT_EQ(r.damage[0].offset, at - 512);
  EXPECT_EQ(r.newest, before.newest);
  EXPECT_EQ(r.places, before.places);
}

}  // namespace
}  // namespace spillway::journal
