#include "spillway/storage/listing.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>
#include <vector>

#include "spillway/storage/volume.h"
#include "tests/storage/fixture.h"

namespace spillway::storage {
namespace {

class ListingTest : public ::testing::Test {
 protected:
  void make(const std::string& run, std::uint32_t shard, std::uint32_t world) const {
    VolumeOptions options;
    options.directory = directory_.path();
    options.capacity = MiB;
    options.run = run;
    options.shard = shard;
    options.world = world;
    const Volume volume(options);
  }

  spillway::testing::TemporaryDirectory directory_;
};

TEST_F(ListingTest, NamesTheVolumesThatCanBeReached) {
  make("a", 1, 4);
  make("a", 3, 4);
  make("b", 0, 1);
  std::ofstream(directory_.path() / "spillway.shard-2-of-4.volume") << "no volume";
  std::ofstream(directory_.path() / "notes.txt") << "no volume";
  std::filesystem::copy_file(directory_.path() / "spillway.volume", directory_.path() / "spillway.shard-x-of-4.volume");
  const auto found = list_volumes(directory_.path());
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].file, directory_.path() / "spillway.shard-1-of-4.volume");
  EXPECT_EQ(found[0].superblock.shard, 1U);
  EXPECT_EQ(found[0].superblock.world, 4U);
  EXPECT_EQ(found[1].superblock.shard, 3U);
  EXPECT_EQ(found[2].file, directory_.path() / "spillway.volume");
  EXPECT_EQ(found[2].superblock.run, "b");
  EXPECT_EQ(found[2].superblock.world, 1U);
}

TEST_F(ListingTest, ThereAreNoneWhereThereIsNoDirectory) {
  EXPECT_TRUE(list_volumes(directory_.path() / "none").empty());
  EXPECT_TRUE(list_volumes(directory_.path()).empty());
}

/// As the processes of a run do that has gone on with another number of them: each removes what the old ones have left.
TEST_F(ListingTest, LeavesOutWhatIsRemovedMeanwhile) {
  make("a", 0, 1);
  const auto link = directory_.path() / "spillway.shard-0-of-2.volume";  // a name whose file is gone when it is opened
  std::filesystem::create_symlink(directory_.path() / "gone", link);
  EXPECT_EQ(list_volumes(directory_.path()).size(), 1U);
  EXPECT_TRUE(list_volumes(link).empty());
  std::filesystem::remove(link);

  constexpr std::uint32_t kShards = 64;
  for (int round = 0; round < 10; ++round) {
    std::vector<std::filesystem::path> others;
    for (std::uint32_t shard = 0; shard < kShards; ++shard) {
      others.push_back(directory_.path() / volume_name(shard, kShards));
      std::filesystem::copy_file(directory_.path() / "spillway.volume", others.back());
    }
    std::thread remover([&] {
      for (const auto& other : others) std::filesystem::remove(other);
    });
    std::size_t found = 0;
    EXPECT_NO_THROW(found = list_volumes(directory_.path()).size());
    remover.join();
    EXPECT_GE(found, 1U);
  }
}

}  // namespace
}  // namespace spillway::storage
