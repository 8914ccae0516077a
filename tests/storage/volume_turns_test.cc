// Volumes that pass from one process to the next, and names that somebody else has taken.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "spillway/base/interrupt.h"
#include "spillway/storage/volume.h"
#include "tests/storage/fixture.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT
namespace fs = std::filesystem;

constexpr int kNamed = 0, kNameless = 1, kRefused = 2;

class VolumeTurns : public ::testing::Test {
 protected:
  [[nodiscard]] VolumeOptions options() const {
    VolumeOptions out;
    out.directory = directory_.path();
    out.capacity = 4 * MiB;
    out.run = "run-a";
    out.metadata = 2 * MiB;
    return out;
  }
  [[nodiscard]] fs::path file() const { return directory_.path() / kVolumeName; }
  [[nodiscard]] fs::path draft() const { return file().string() + ".new"; }

  /// Another process, which opens the volume, and says what became of that.
  static pid_t start(const VolumeOptions& options) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    int status = kRefused;
    try {
      const Volume volume(options);
      status = volume.file().has_its_name() ? kNamed : kNameless;
    } catch (const Error&) {
    }
    ::_exit(status);
  }
  /// Waits until it has the file open and keeps it so: what it looks at before it waits is closed again.
  void until_it_waits(pid_t process) const {
    const fs::path open = fs::path("/proc") / std::to_string(process) / "fd";
    for (int kept = 0; kept < 200; std::this_thread::yield()) {
      bool there = false;
      std::error_code ignored;
      for (const auto& entry : fs::directory_iterator(open, ignored)) {
        there = there || fs::read_symlink(entry.path(), ignored) == file();
      }
      kept = there ? kept + 1 : 0;
    }
  }
  static int end_of(pid_t process) {
    int status = 0;
    return ::waitpid(process, &status, 0) == process && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  static unsigned permissions(const fs::path& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 ? status.st_mode & 07777U : 0;
  }
  static void record(const fs::path& volume) {
    std::fstream(volume, std::ios::in | std::ios::out | std::ios::binary).seekp(1 * MiB) << "a commit";
  }
  static std::string words_of(const fs::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  TemporaryDirectory directory_;
};

TEST_F(VolumeTurns, WhoWaitedForOneThatIsRemovedMakesAnother) {
  std::optional<Volume> first(options());
  const pid_t second = start(options());
  until_it_waits(second);
  first->remove();
  first.reset();
  EXPECT_EQ(end_of(second), kNamed);
  EXPECT_TRUE(fs::exists(file()));
}

TEST_F(VolumeTurns, WhoWaitedToOpenItAgainIsRefused) {
  std::optional<Volume> first(options());
  VolumeOptions again = options();
  again.reopen = true;
  const pid_t second = start(again);
  until_it_waits(second);
  first->remove();
  first.reset();
  EXPECT_EQ(end_of(second), kRefused);
  EXPECT_TRUE(fs::is_empty(directory_.path()));
}

TEST_F(VolumeTurns, StepsThatWereMadeWhileItWasWaitedForAreNotGivenUp) {
  std::optional<Volume> first(options());
  VolumeOptions careful = options();
  careful.keep_records = true;
  const pid_t second = start(careful);
  until_it_waits(second);
  record(file());
  first.reset();
  EXPECT_EQ(end_of(second), kRefused);
  std::ifstream in(file(), std::ios::binary);
  std::string found(8, ' ');
  in.seekg(1 * MiB).read(found.data(), 8);
  EXPECT_EQ(found, "a commit");
}

TEST_F(VolumeTurns, OneThatTookNoRecordsBelongsToWhatTheOthersHold) {
  VolumeOptions other = options(), careful = options();
  other.directory = directory_.path() / "other";
  fs::create_directory(other.directory);
  careful.keep_records = true;
  careful.beside = {other.directory / kVolumeName};
  { const Volume volume(other); }
  record(careful.beside.front());
  EXPECT_ERROR(Volume{careful}, ErrorCode::bad_input, "other/spillway.volume holds what this run has recorded");
  EXPECT_FALSE(fs::exists(file()) || fs::exists(draft()));
  { const Volume volume(options()); }
  const auto before = words_of(file());
  EXPECT_ERROR(Volume{careful}, ErrorCode::bad_input, "other/spillway.volume holds what this run has recorded");
  EXPECT_TRUE(words_of(file()) == before);
  careful.overwrite = true;
  EXPECT_NO_THROW(Volume{careful});
}

TEST_F(VolumeTurns, RecordsOfBeforeItWasPreparedDoNotCount) {
  { const Volume volume(options()); }
  record(file());
  {
    const sys::File there(file(), {.write = true});
    auto superblock = read_superblocks(there).superblock;
    superblock.ready = false;
    write_superblocks(there, superblock);
  }
  VolumeOptions careful = options();
  careful.keep_records = true;
  const Volume again(careful);
  EXPECT_TRUE(read_superblocks(again.file()).superblock.ready);
}

TEST_F(VolumeTurns, OnlyItsOwnFileIsRemoved) {
  Volume volume(options());
  fs::rename(file(), directory_.path() / "moved");
  std::ofstream(file()) << "somebody's thesis";
  volume.remove();
  EXPECT_EQ(words_of(file()), "somebody's thesis");
}

TEST_F(VolumeTurns, IsForItsUserAlone) {
  const Volume volume(options());
  EXPECT_EQ(permissions(file()), 0600U);
}

TEST_F(VolumeTurns, ADraftThatAKilledRunHasLeftIsReplaced) {
  std::ofstream(draft()) << "half of one";
  const Volume volume(options());
  EXPECT_EQ(permissions(file()), 0600U);
  EXPECT_FALSE(fs::exists(draft()));
}

TEST_F(VolumeTurns, ALinkInPlaceOfADraftIsRefused) {
  const fs::path victim = directory_.path() / "victim";
  std::ofstream(victim) << "somebody's thesis";
  fs::create_symlink(victim, draft());
  EXPECT_ERROR(Volume{options()}, ErrorCode::bad_input, "is not a regular file");
  EXPECT_EQ(words_of(victim), "somebody's thesis");
  EXPECT_TRUE(fs::is_symlink(draft()));
}

TEST_F(VolumeTurns, ASecondNameOfAFileInPlaceOfADraftLeavesTheFile) {
  const fs::path victim = directory_.path() / "victim";
  std::ofstream(victim) << "somebody's thesis";
  fs::create_hard_link(victim, draft());
  { const Volume volume(options()); }
  EXPECT_EQ(words_of(victim), "somebody's thesis");
}

TEST_F(VolumeTurns, AnInterruptionLeavesNothing) {
  struct Interruption {};
  VolumeOptions long_one = options();
  long_one.prewrite = true;
  on_interrupt([] { throw Interruption{}; });
  EXPECT_THROW(Volume{long_one}, Interruption);
  on_interrupt(nullptr);
  EXPECT_TRUE(fs::is_empty(directory_.path()));
}

}  // namespace
}  // namespace spillway::storage
