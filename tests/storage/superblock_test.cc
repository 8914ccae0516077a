#include "spillway/storage/superblock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::storage {
namespace {

using Page = std::array<std::byte, kSuperblockBytes>;

Superblock superblock_of(const std::string& run) {
  Superblock out;
  out.capacity = 7 * MiB;
  out.metadata = 3 * MiB;
  out.piece_size = 1 * MiB;
  out.run = run;
  out.model = 0xFEDCBA9876543210;
  out.number = 2;
  out.paths = 3;
  out.prewritten = true;
  return out;
}

Page encoded(const std::string& run) {
  Page page{};
  encode(superblock_of(run), page);
  return page;
}

SuperblockState state_of(const Page& page) {
  Superblock ignored;
  return decode(page, ignored);
}

TEST(SuperblockTest, ReturnsWhatWentIn) {
  for (const std::string& run : {std::string(), std::string("run"), std::string(kMostRunBytes, 'x')}) {
    Superblock out;
    ASSERT_EQ(decode(encoded(run), out), SuperblockState::valid);
    EXPECT_EQ(out, superblock_of(run));
  }
  Superblock unready = superblock_of("run");
  unready.ready = unready.prewritten = false;
  Page page;
  encode(unready, page);
  Superblock out;
  ASSERT_EQ(decode(page, out), SuperblockState::valid);
  EXPECT_EQ(out, unready);
}

TEST(SuperblockTest, EveryByteIsGuarded) {
  const Page good = encoded("run");
  for (std::size_t at = 0; at < good.size(); ++at) {
    Page bad = good;
    bad[at] ^= std::byte{0x10};
    EXPECT_NE(state_of(bad), SuperblockState::valid) << at;
  }
}

TEST(SuperblockTest, KnowsTheOtherByteOrder) {
  Page page = encoded("run");
  std::reverse(page.begin() + 8, page.begin() + 12);
  EXPECT_EQ(state_of(page), SuperblockState::alien);
}

TEST(SuperblockTest, KnowsOtherFormatsAndWhoseTheyAre) {
  for (const std::uint32_t format : {1U, 4U}) {
    Superblock other = superblock_of("run");
    other.format = format;
    Page page;
    encode(other, page);
    Superblock out;
    EXPECT_EQ(decode(page, out), SuperblockState::other_format);
    EXPECT_EQ(out.format, format);
    EXPECT_EQ(out.run, "run");
    EXPECT_EQ(out.capacity, 7 * MiB);
  }
}

TEST(SuperblockTest, ZerosAreForeign) {
  EXPECT_EQ(state_of(Page{}), SuperblockState::foreign);
}

TEST(SuperblockTest, RefusesALongName) {
  EXPECT_ERROR(encoded(std::string(kMostRunBytes + 1, 'x')), ErrorCode::bad_input, "257 bytes");
}

class SuperblockPairTest : public ::testing::Test {
 protected:
  SuperblockPairTest() { file_.reserve(kSuperblockExtent); }

  /// Bytes of one copy become something else.
  void spoil(std::size_t copy, Bytes from, Bytes count) const {
    std::vector<std::byte> bytes(count);
    file_.read(bytes, kSuperblockOffsets.at(copy) + from);
    for (std::byte& byte : bytes) byte ^= std::byte{0x5A};
    file_.write(bytes, kSuperblockOffsets.at(copy) + from);
  }

  spillway::testing::TemporaryDirectory directory_;
  sys::File file_{directory_.path() / "file", {.write = true, .create = true}};
};

TEST_F(SuperblockPairTest, AnEmptyFileIsForeign) {
  EXPECT_EQ(read_superblocks(file_).state, SuperblockState::foreign);
  const sys::File empty(directory_.path() / "empty", {.write = true, .create = true});
  EXPECT_EQ(read_superblocks(empty).state, SuperblockState::foreign);
}

TEST_F(SuperblockPairTest, OneCopyIsEnoughAndTheOtherIsSpokenOf) {
  for (const std::size_t bad : {0U, 1U}) {
    for (Bytes sector = 0; sector < kSuperblockBytes; sector += 512) {
      write_superblocks(file_, superblock_of("run"));
      EXPECT_EQ(read_superblocks(file_).damage, "");
      spoil(bad, sector, 512);
      const SuperblockPair pair = read_superblocks(file_);
      EXPECT_EQ(pair.state, SuperblockState::valid);
      EXPECT_EQ(pair.superblock, superblock_of("run"));
      EXPECT_NE(pair.damage.find(text("at byte ", kSuperblockOffsets.at(bad), " is damaged")), std::string::npos)
          << pair.damage;
    }
  }
}

TEST_F(SuperblockPairTest, TwoDamagedCopiesAreDamage) {
  write_superblocks(file_, superblock_of("run"));
  spoil(0, 100, 1);
  spoil(1, 0, 512);  // the magic too
  EXPECT_EQ(read_superblocks(file_).state, SuperblockState::damaged);
}

/// The second copy is written first: until the first one is whole and new, the answer is the old one or the new one.
TEST_F(SuperblockPairTest, ARewriteThatStopsAnywhereLeavesTheOldOrTheNew) {
  const Superblock old = superblock_of("old");
  Superblock unready = superblock_of("new"), larger = superblock_of("new");
  unready.ready = false;
  larger.capacity += MiB;
  const std::vector<std::pair<Superblock, Superblock>> rewrites = {
      {old, unready}, {unready, superblock_of("new")}, {superblock_of("new"), larger}};
  for (const auto& [before, after] : rewrites) {
    Page page;
    encode(after, page);
    for (const std::size_t copy : {1U, 0U}) {
      for (Bytes written = 0; written <= kSuperblockBytes; written += 512) {
        write_superblocks(file_, before);
        if (copy == 0) file_.write(page, kSuperblockOffsets[1]);
        file_.write(std::span(page).first(written), kSuperblockOffsets.at(copy));
        const SuperblockPair pair = read_superblocks(file_);
        ASSERT_EQ(pair.state, SuperblockState::valid);
        EXPECT_TRUE(pair.superblock == before || pair.superblock == after);
        if (written == 0 && copy == 1) {
          EXPECT_EQ(pair.superblock, before);
        }
        if (written == kSuperblockBytes && copy == 0) {
          EXPECT_EQ(pair.superblock, after);
        }
      }
    }
  }
}

/// A drive lost the write of one copy: whichever it was, the volume is the one that was written last.
TEST_F(SuperblockPairTest, ALostWriteOfOneCopyLosesNothing) {
  Superblock unready = superblock_of("run"), larger = superblock_of("run");
  unready.ready = false;
  larger.capacity += MiB;
  for (const auto& [before, after] :
       {std::pair(unready, superblock_of("run")), std::pair(superblock_of("run"), larger)}) {
    for (const std::size_t lost : {0U, 1U}) {
      write_superblocks(file_, after);
      Page page;
      encode(before, page);
      file_.write(page, kSuperblockOffsets.at(lost));
      const SuperblockPair pair = read_superblocks(file_);
      EXPECT_EQ(pair.state, SuperblockState::valid);
      EXPECT_EQ(pair.superblock, after);
      EXPECT_EQ(pair.damage, "");
      EXPECT_NE(pair.older.find(text("at byte ", kSuperblockOffsets.at(lost), " is an older one")), std::string::npos);
    }
  }
}

/// A superblock of another path, or of another making, landed here.
TEST_F(SuperblockPairTest, TwoReadyCopiesOfDifferentMakingsAreDamage) {
  Superblock other = superblock_of("run"), later = superblock_of("run");
  other.number = 1;
  later.set = 99;
  for (const auto& foreign : {other, later, superblock_of("another run")}) {
    write_superblocks(file_, superblock_of("run"));
    Page page;
    encode(foreign, page);
    file_.write(page, kSuperblockOffsets[1]);
    const SuperblockPair pair = read_superblocks(file_);
    EXPECT_EQ(pair.state, SuperblockState::damaged);
    EXPECT_NE(pair.damage.find("two superblocks of different makings"), std::string::npos) << pair.damage;
  }
}

/// Every subset of the first page's sectors may be there; the rest of the sequence has one whole copy.
TEST_F(SuperblockPairTest, TheFirstOnesThatAreTornAreNothingOrThemselves) {
  Superblock coming = superblock_of("run");
  coming.ready = false;
  write_first_superblocks(file_, coming);
  EXPECT_EQ(read_superblocks(file_).superblock, coming);
  EXPECT_EQ(read_superblocks(file_).damage, "");
  Page whole, begun;
  encode(coming, whole);
  begun = whole;
  std::fill(begun.end() - 8, begun.end(), std::byte{0});
  const auto torn = [&](const Page& before, const Page& after, unsigned subset) {
    Page page = before;
    for (unsigned sector = 0; sector < 8; ++sector) {
      if ((subset & (1u << sector)) == 0) continue;
      std::copy_n(after.begin() + 512 * sector, 512, page.begin() + 512 * sector);
    }
    return page;
  };
  for (unsigned subset = 0; subset < 256; ++subset) {
    Superblock read;
    const Page first = torn(Page{}, begun, subset);
    const SuperblockState state = decode(first, read);
    EXPECT_TRUE(state == SuperblockState::valid ? read == coming : first == Page{}) << subset;
    EXPECT_EQ(decode(torn(begun, whole, subset), read), SuperblockState::valid) << subset;
    EXPECT_EQ(read, coming);
  }
}

TEST(SuperblockTest, WithoutAChecksumAReadyOneIsDamaged) {
  Page page = encoded("run");
  std::fill(page.end() - 8, page.end(), std::byte{0});
  EXPECT_EQ(state_of(page), SuperblockState::damaged);
}

TEST(SuperblockTest, GivenBackItIsNobodysButKeepsItsShape) {
  const Superblock mine = superblock_of("run");
  const Superblock nobodys = given_back(mine);
  EXPECT_FALSE(is_nobodys(mine));
  EXPECT_TRUE(is_nobodys(nobodys));
  EXPECT_EQ(nobodys.capacity, mine.capacity);
  EXPECT_TRUE(nobodys.prewritten);
  Superblock anonymous = superblock_of("");
  EXPECT_FALSE(is_nobodys(anonymous));
}

}  // namespace
}  // namespace spillway::storage
