// Volumes that are opened again with more capacity.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string_view>
#include <vector>

#include "spillway/storage/superblock.h"
#include "spillway/storage/volume.h"
#include "tests/needs.h"
#include "tests/storage/file_size_limit.h"
#include "tests/storage/fixture.h"
#include "tests/sys/child.h"
#include "tests/sys/killing.h"
#include "tests/sys/loop_device.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT
using spillway::testing::Fate;

class VolumeGrow : public ::testing::Test {
 protected:
  /// The volume has 4 MiB, with records and data in it.
  void make(bool prewrite = false) const {
    VolumeOptions options = asking(4 * MiB);
    options.reopen = false;
    options.prewrite = prewrite;
    { const Volume volume(options); }
    write_at(1 * MiB + 5, "record");
    write_at(6 * MiB - 5, "state");
  }
  [[nodiscard]] VolumeOptions asking(Bytes capacity) const {
    VolumeOptions out;
    out.directory = directory_.path();
    out.capacity = capacity;
    out.run = "run-a";
    out.metadata = 1 * MiB;
    out.reopen = true;
    return out;
  }
  [[nodiscard]] std::filesystem::path file() const { return directory_.path() / kVolumeName; }
  void write_at(Bytes at, std::string_view words) const {
    sys::File(file(), {.write = true}).write({reinterpret_cast<const std::byte*>(words.data()), words.size()}, at);
  }
  [[nodiscard]] std::string read_at(Bytes at, std::size_t count) const {
    std::string out(count, ' ');
    sys::File(file()).read({reinterpret_cast<std::byte*>(out.data()), count}, at);
    return out;
  }
  [[nodiscard]] bool keeps_everything() const {
    return read_at(1 * MiB + 5, 6) == "record" && read_at(6 * MiB - 5, 5) == "state";
  }
  [[nodiscard]] Superblock superblock() const { return read_superblocks(sys::File(file())).superblock; }

  TemporaryDirectory directory_;
};

TEST_F(VolumeGrow, ItHoldsWhatIsAskedAndWhatItHeld) {
  make();
  EXPECT_EQ(Volume{asking(9 * MiB)}.capacity(), 9 * MiB);
  EXPECT_EQ(std::filesystem::file_size(file()), 11 * MiB);
  EXPECT_GE(sys::File(file()).reserved(), 11 * MiB);
  EXPECT_EQ(superblock().capacity, 9 * MiB);
  EXPECT_TRUE(superblock().ready);
  EXPECT_TRUE(keeps_everything());
  EXPECT_EQ(Volume{asking(4 * MiB)}.capacity(), 9 * MiB);
  EXPECT_EQ(Volume{asking(0)}.capacity(), 9 * MiB);
}

TEST_F(VolumeGrow, APathHasItsNewExtentsAtOnce) {
  auto options = options_in(directory_.path(), 2 * MiB);
  { const Path path(options); }
  options.capacity = 6 * MiB - 100;
  options.reopen = true;
  Path path(options);
  EXPECT_EQ(path.capacity(), 6 * MiB);
  const sys::Mapping memory(6 * MiB);
  fill(memory.span(), 3);
  path.run(transfer_of(Direction::write, memory.span(), path.allocate(6 * MiB)));
  clear(memory.span());
  path.run(transfer_of(Direction::read, memory.span(), 0));
  EXPECT_TRUE(is_filled(memory.span(), 3));
}

TEST_F(VolumeGrow, OnlyTheNewPartIsPrewritten) {
  for (const bool before : {false, true}) {
    make(before);
    auto asked = asking(6 * MiB);
    std::vector<Bytes> done;
    asked.prewrite = true;
    asked.progress = [&](Bytes bytes, Bytes of) {
      done.push_back(bytes);
      EXPECT_EQ(of, 2 * MiB);
    };
    { const Volume volume(asked); }
    EXPECT_EQ(done, (std::vector<Bytes>{1 * MiB, 2 * MiB}));
    EXPECT_EQ(superblock().prewritten, before);
    EXPECT_TRUE(keeps_everything());
    std::filesystem::remove(file());
  }
  make(true);
  { const Volume volume(asking(6 * MiB)); }
  EXPECT_FALSE(superblock().prewritten);
}

TEST_F(VolumeGrow, WithoutRoomItIsRefusedAsItWas) {
  make();
  const Bytes more = round_up(sys::free_space(directory_.path()), MiB) + 64 * GiB;
  const std::string words = text("holds 4.0 MiB and should hold ", human(4 * MiB + more), " (", 4 * MiB + more,
                                 " bytes), which takes another ", human(more));
  EXPECT_ERROR(Volume{asking(4 * MiB + more)}, ErrorCode::does_not_fit, words);
  EXPECT_ERROR(Volume{asking(4 * MiB + more)}, ErrorCode::does_not_fit, "bytes) free. Free space there");
  EXPECT_EQ(std::filesystem::file_size(file()), 6 * MiB);
  {
    const FileSizeLimit limit(8 * MiB);
    EXPECT_ERROR(Volume{asking(16 * MiB)}, ErrorCode::does_not_fit, "reserve");
  }
  EXPECT_EQ(std::filesystem::file_size(file()), 6 * MiB);
  EXPECT_EQ(superblock().capacity, 4 * MiB);
  EXPECT_TRUE(keeps_everything());
}

/// A file system that fills up while it grows gets back what it gave.
TEST_F(VolumeGrow, OnAFullFileSystemNothingIsLost) {
  const int status = spillway::testing::in_child([&] {
    const char* where = directory_.path().c_str();
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", where, "tmpfs", 0, "size=8m") != 0) {
      return spillway::testing::kCannotTry;
    }
    int answer = 1;
    try {
      make();
      { const Volume volume(asking(6 * MiB)); }  // all there is
      const Volume volume(asking(0));            // a full file system does not matter to one that is there
      if (volume.capacity() == 6 * MiB && keeps_everything()) answer = 0;
    } catch (const std::exception&) {
    }
    try {
      const Volume volume(asking(7 * MiB));
      answer = 2;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::does_not_fit) answer = 3;
    }
    return answer;
  });
  SPILLWAY_NEEDS(mount, status != spillway::testing::kCannotTry, "may not mount");
  EXPECT_EQ(status, 0);
}

TEST_F(VolumeGrow, WhatTheProgressThrowsLeavesItAsItWas) {
  make();
  auto asked = asking(6 * MiB);
  asked.prewrite = true;
  asked.progress = [](Bytes, Bytes) { throw Error(ErrorCode::internal, "stopped by hand"); };
  EXPECT_ERROR(Volume{asked}, ErrorCode::internal, "stopped by hand");
  EXPECT_EQ(std::filesystem::file_size(file()), 6 * MiB);
  EXPECT_EQ(Volume{asking(0)}.capacity(), 4 * MiB);
  EXPECT_TRUE(keeps_everything());
}

/// Space that cannot be reserved is written, from the end of the volume on.
TEST_F(VolumeGrow, WithoutReservationsNothingIsWrittenOver) {
  make();
  const int status = spillway::testing::in_child([&] {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{4, filter};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      return spillway::testing::kCannotTry;
    }
    return Volume(asking(6 * MiB)).capacity() == 6 * MiB ? 0 : 1;
  });
  SPILLWAY_NEEDS(seccomp, status != spillway::testing::kCannotTry, "no seccomp filters on this machine");
  EXPECT_EQ(status, 0);
  EXPECT_EQ(superblock().capacity, 6 * MiB);
  EXPECT_TRUE(keeps_everything());
}

TEST_F(VolumeGrow, ItMayBeKilledAnywhere) {
  auto growing = asking(7 * MiB);
  growing.prewrite = true;
  bool seen_old = false;
  unsigned call = 1;
  for (;; ++call) {
    std::filesystem::remove(file());
    make(true);
    const Fate fate = spillway::testing::killed_at(call, [&] { const Volume volume(growing); });
    SPILLWAY_NEEDS(ptrace, fate != Fate::untold, "no tracing of processes on this machine");
    ASSERT_NE(fate, Fate::failed) << call;
    const Bytes capacity = Volume{asking(0)}.capacity();
    EXPECT_TRUE(capacity == 4 * MiB || capacity == 7 * MiB) << call;
    seen_old = seen_old || capacity == 4 * MiB;
    EXPECT_EQ(Volume{growing}.capacity(), 7 * MiB) << call;
    EXPECT_TRUE(superblock().prewritten && keeps_everything()) << call;
    if (fate == Fate::ended) break;
  }
  EXPECT_TRUE(seen_old);
  EXPECT_GT(call, 6U);
}

/// After a power cut the old length may be there with the old superblocks, but never the new ones without their space.
TEST_F(VolumeGrow, OfTheSuperblocksTheOldOrTheNewCount) {
  make();
  Superblock larger = superblock();
  larger.capacity = 7 * MiB;
  std::vector<std::byte> old(kSuperblockExtent);
  sys::File(file()).read(old, 0);
  for (const Bytes length : {6 * MiB, 7 * MiB + 4096, 9 * MiB}) {
    std::filesystem::resize_file(file(), length);  // reserved, but not told
    EXPECT_EQ(Volume{asking(0)}.capacity(), 4 * MiB);
  }
  { const Volume volume(asking(7 * MiB)); }
  EXPECT_EQ(superblock(), larger);
  sys::File(file(), {.write = true}).write(std::span(old).first(kSuperblockBytes), 0);  // the first copy came last
  EXPECT_EQ(Volume{asking(0)}.capacity(), 7 * MiB) << "the second one says so once the space is there";
  write_at(100, "~");  // and was torn
  EXPECT_EQ(Volume{asking(0)}.capacity(), 7 * MiB);
  EXPECT_TRUE(keeps_everything());
}

/// A device that was made larger, as a logical volume may be.
class VolumeGrowOnADevice : public VolumeGrow {
 protected:
  void SetUp() override { REQUIRE_LOOP_DEVICE(loop_); }
  [[nodiscard]] VolumeOptions on_device(Bytes least) const {
    VolumeOptions out = asking(least);
    out.directory.clear();
    out.device = loop_.path();
    return out;
  }
  spillway::testing::LoopDevice loop_{directory_.path(), 8 * MiB, 4096};
};

TEST_F(VolumeGrowOnADevice, ItTakesAllThatIsThere) {
  auto creating = on_device(0);
  creating.reopen = false;
  EXPECT_EQ(Volume{creating}.capacity(), 6 * MiB);
  EXPECT_ERROR(Volume{on_device(7 * MiB)}, ErrorCode::does_not_fit, "the device has 6.0 MiB");
  ASSERT_TRUE(loop_.resize(12 * MiB));
  EXPECT_EQ(Volume{on_device(0)}.capacity(), 6 * MiB);
  EXPECT_EQ(Volume{on_device(7 * MiB)}.capacity(), 10 * MiB);
  EXPECT_EQ(Volume{on_device(0)}.capacity(), 10 * MiB);
  EXPECT_EQ(std::filesystem::file_size(directory_.path() / "loop.img"), 12 * MiB);
}

}  // namespace
}  // namespace spillway::storage
