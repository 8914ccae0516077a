#include "spillway/storage/superblock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "spillway/storage/checksum.h"
#include "tests/sys/failing.h"

namespace spillway::storage {
namespace {

using Page = std::array<std::byte, kSuperblockBytes>;

Page encoded(const std::string& run) {
  Page page{};
  encode({7 * MiB, 1 * MiB, run}, page);
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
    EXPECT_EQ(out.run, run);
    EXPECT_EQ(out.capacity, 7 * MiB);
    EXPECT_EQ(out.piece_size, 1 * MiB);
  }
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

TEST(SuperblockTest, KnowsANewerFormat) {
  Page page = encoded("run");
  page[12] = std::byte{2};
  const std::uint64_t sum = checksum(std::span(page).first(4088), 0);
  std::copy_n(reinterpret_cast<const std::byte*>(&sum), sizeof sum, page.begin() + 4088);
  EXPECT_EQ(state_of(page), SuperblockState::newer);
}

TEST(SuperblockTest, ZerosAreForeign) {
  EXPECT_EQ(state_of(Page{}), SuperblockState::foreign);
}

TEST(SuperblockTest, RefusesALongName) {
  EXPECT_ERROR(encoded(std::string(kMostRunBytes + 1, 'x')), ErrorCode::bad_input, "257 bytes");
}

}  // namespace
}  // namespace spillway::storage
