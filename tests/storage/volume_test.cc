// The volume: created whole or not at all, and never over what is not ours.
#include "spillway/storage/volume.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <fstream>

#include "spillway/storage/superblock.h"
#include "spillway/sys/file.h"
#include "tests/needs.h"
#include "tests/storage/file_size_limit.h"
#include "tests/storage/fixture.h"
#include "tests/sys/child.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT

class VolumeTest : public ::testing::Test {
 protected:
  [[nodiscard]] VolumeOptions options(const std::string& run = "run-a", Bytes capacity = 4 * MiB) const {
    return {directory_.path(), capacity, run, false};
  }
  [[nodiscard]] std::filesystem::path file() const { return directory_.path() / "spillway.volume"; }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory_.path()), {}));
  }
  [[nodiscard]] Superblock superblock() const {
    const SuperblockPair pair = read_superblocks(sys::File(file()));
    EXPECT_EQ(pair.state, SuperblockState::valid);
    EXPECT_EQ(pair.damage, "");
    return pair.superblock;
  }
  void spoil(Bytes at) const {
    std::fstream stream(file(), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put('~');
  }

  TemporaryDirectory directory_;
};

TEST_F(VolumeTest, HoldsWhatItWasMadeFor) {
  const Volume volume(options());
  EXPECT_EQ(volume.path(), file());
  EXPECT_EQ(std::filesystem::file_size(file()), 5 * MiB);
  EXPECT_GE(volume.file().reserved(), 5 * MiB);
  EXPECT_EQ(superblock().run, "run-a");
  EXPECT_EQ(superblock().capacity, 4 * MiB);
  EXPECT_EQ(superblock().piece_size, 1 * MiB);
  EXPECT_EQ(files(), 1U);
}

TEST_F(VolumeTest, TheSameRunUsesItsVolumeAgain) {
  std::filesystem::path first = file();
  { const Volume volume(options()); }
  const auto made = std::filesystem::last_write_time(first);
  { const Volume volume(options("run-a", 2 * MiB)); }
  EXPECT_EQ(std::filesystem::last_write_time(first), made);
  EXPECT_EQ(std::filesystem::file_size(file()), 5 * MiB);
  { const Volume volume(options("run-a", 8 * MiB)); }
  EXPECT_EQ(std::filesystem::file_size(file()), 9 * MiB);
}

TEST_F(VolumeTest, AFileThatLosesItsNameIsDisplaced) {
  const Volume volume(options());
  EXPECT_FALSE(volume.is_displaced());
  const auto elsewhere = directory_.path() / "elsewhere";
  std::filesystem::rename(file(), elsewhere);
  EXPECT_TRUE(volume.is_displaced());
  std::filesystem::copy_file(elsewhere, file());
  EXPECT_TRUE(volume.is_displaced());  // another file has the name
  std::filesystem::rename(elsewhere, file());
  EXPECT_FALSE(volume.is_displaced());
  std::filesystem::remove(file());
  EXPECT_TRUE(volume.is_displaced());
}

TEST_F(VolumeTest, AnotherRunsVolumeIsRefusedUnlessItMayBeOverwritten) {
  { const Volume volume(options("run-a")); }
  EXPECT_ERROR(Volume{options("run-b")}, ErrorCode::bad_input, "belongs to run 'run-a'");
  EXPECT_EQ(superblock().run, "run-a");
  EXPECT_EQ(files(), 1U);
  auto insisting = options("run-b");
  insisting.overwrite = true;
  { const Volume volume(insisting); }
  EXPECT_EQ(superblock().run, "run-b");
  EXPECT_EQ(files(), 1U);
}

TEST_F(VolumeTest, AFileThatIsNoVolumeIsRefused) {
  std::ofstream(file()) << "somebody's thesis";
  EXPECT_ERROR(Volume{options()}, ErrorCode::bad_input, "is not a Spillway volume");
  EXPECT_EQ(std::filesystem::file_size(file()), 17U);
}

TEST_F(VolumeTest, ADamagedSuperblockIsRefused) {
  { const Volume volume(options()); }
  for (const Bytes copy : kSuperblockOffsets) spoil(copy + 50);
  EXPECT_ERROR(Volume{options()}, ErrorCode::bad_input, "damaged superblock");
}

TEST_F(VolumeTest, AVolumeCutShortIsMadeAnew) {
  { const Volume volume(options()); }
  std::filesystem::resize_file(file(), 2 * MiB);
  const Volume volume(options());
  EXPECT_EQ(std::filesystem::file_size(file()), 5 * MiB);
}

TEST_F(VolumeTest, AVolumeInUseIsRefused) {
  const Volume volume(options());
  EXPECT_ERROR(Volume{options()}, ErrorCode::bad_input, "in use by another run");
  auto insisting = options("run-b");
  insisting.overwrite = true;
  EXPECT_ERROR(Volume{insisting}, ErrorCode::bad_input, "in use by another run");
}

TEST_F(VolumeTest, SomethingElseUnderTheNameIsRefused) {
  std::filesystem::create_directory(file());
  EXPECT_ERROR(Volume{options()}, ErrorCode::bad_input, "not a regular file");
}

TEST_F(VolumeTest, AMissingDirectoryIsNamed) {
  auto missing = options();
  missing.directory = directory_.path() / "nowhere";
  EXPECT_ERROR(Volume{missing}, ErrorCode::bad_input, "nowhere does not exist");
}

TEST_F(VolumeTest, AFileInPlaceOfTheDirectoryIsNamed) {
  auto wrong = options();
  wrong.directory = directory_.path() / "file";
  std::ofstream(wrong.directory) << "x";
  EXPECT_ERROR(Volume{wrong}, ErrorCode::bad_input, "is not a directory");
}

TEST_F(VolumeTest, TooLittleSpaceNamesBothFigures) {
  const Bytes asked = round_up(sys::free_space(directory_.path()), MiB) + 64 * GiB;
  EXPECT_ERROR(Volume{options("run-a", asked)}, ErrorCode::does_not_fit, text(asked + 1 * MiB, " bytes"));
  EXPECT_EQ(files(), 0U);
}

TEST_F(VolumeTest, AFailureHalfWayLeavesTheOldVolumeAlone) {
  { const Volume volume(options("run-a")); }
  auto insisting = options("run-b", 16 * MiB);
  insisting.overwrite = true;
  {
    const FileSizeLimit limit(8 * MiB);
    EXPECT_ERROR(Volume{insisting}, ErrorCode::does_not_fit, "reserve");
  }
  EXPECT_EQ(files(), 1U);
  EXPECT_EQ(superblock().run, "run-a");
}

TEST_F(VolumeTest, AReadOnlyDirectoryIsRefused) {
  const int status = spillway::testing::in_child([&] {
    const char* where = directory_.path().c_str();
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount(where, where, nullptr, MS_BIND, nullptr) != 0 ||
        ::mount(nullptr, where, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) != 0) {
      return spillway::testing::kCannotTry;
    }
    try {
      const Volume volume(options());
    } catch (const Error& error) {
      return error.code() == ErrorCode::bad_input && error.errno_value() == EROFS ? 0 : 1;
    }
    return 2;
  });
  SPILLWAY_NEEDS(mount, status != spillway::testing::kCannotTry, "no private mounts on this machine");
  EXPECT_EQ(status, 0);
  EXPECT_EQ(files(), 0U);
}

TEST_F(VolumeTest, MemoryInPlaceOfADriveIsSpokenOf) {
  SPILLWAY_NEEDS(shm, std::filesystem::is_directory("/dev/shm"), "no /dev/shm on this machine");
  const TemporaryDirectory in_memory("/dev/shm");
  Path path(options_in(in_memory.path(), 4 * MiB));
  EXPECT_FALSE(path.direct());
  EXPECT_EQ(path.notice(),
            "path:0 is on tmpfs, which has no O_DIRECT: it is used through the page cache, which takes memory that the "
            "plan does not count");
  const sys::Mapping arena(4 * MiB);
  fill(arena.span(), 5);
  path.run(transfer_of(Direction::write, arena.span(), 0));
  clear(arena.span());
  path.run(transfer_of(Direction::read, arena.span(), 0));
  EXPECT_TRUE(is_filled(arena.span(), 5));
}

TEST_F(VolumeTest, APathRefusesAnAbsurdDepthOrCapacity) {
  auto wrong = options_in(directory_.path());
  wrong.queue_depth = 0;
  EXPECT_ERROR(Path{wrong}, ErrorCode::bad_input, "queue depth of 0");
  wrong = options_in(directory_.path(), ~Bytes{0});
  EXPECT_ERROR(Path{wrong}, ErrorCode::does_not_fit, "18446744073709551615");
  EXPECT_EQ(files(), 0U);
}

}  // namespace
}  // namespace spillway::storage
