// Two processes of a run at once: a supervisor starts the second while the first is ending. What the first has made
// until it lets go of the volumes is the second one's to go on from.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "spillway/engine_testing.h"
#include "spillway/storage/volume.h"
#include "spillway/sys/faulty_ring.h"
#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

using test::Directory;
using test::DurableRun;

class TwoAtOnce : public ::testing::Test {
 protected:
  TwoAtOnce() { settings_.budget.checkpoints = 3; }

  /// Descriptors of the file that are open in this process.
  static std::ptrdiff_t opened(const fs::path& file) {
    std::error_code gone;
    std::ptrdiff_t count = 0;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      count += fs::read_symlink(entry.path(), gone) == file ? 1 : 0;
    }
    return count;
  }
  [[nodiscard]] std::ptrdiff_t open_volumes() const { return opened(volume_); }
  /// Until another one has looked at the file and waits for its lock. Where that takes longer than this does, it
  /// finds what it would have found without another one beside it.
  static void await_one_that_waits(const fs::path& file, std::ptrdiff_t before) {
    for (int same = 0, looks = 0; same < 20 && looks < 2000; ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      same = opened(file) > before ? same + 1 : 0;
    }
  }
  void await_one_that_waits(std::ptrdiff_t before) const { await_one_that_waits(volume_, before); }
  /// A run of so many steps that has ended.
  void leave_steps(std::uint64_t steps) const {
    Engine engine(run_.description(), settings_);
    engine.start();
    run_.fill(engine);
    run_.train(engine, 1, steps);
    engine.close();
  }
  /// The step that a second process goes on from which waits while the first one, with these settings, makes three.
  std::uint64_t second_goes_on_after(const Settings& of_first, const Settings& of_second) const {
    std::future<std::uint64_t> second;
    {
      Engine first(run_.description(), of_first);
      first.start();
      const auto before = open_volumes();
      second = std::async(std::launch::async, [&] {
        Engine engine(run_.description(), of_second);
        const auto found = engine.start({.reopen = true});
        EXPECT_TRUE(found.has_step && run_.holds(engine, found.step));
        engine.close();
        return found.step;
      });
      // The volume is there, but nothing is committed in it when it is looked at.
      await_one_that_waits(before);
      run_.fill(first);
      run_.train(first, 1, 3);
      first.close();
    }
    return second.get();
  }
  [[nodiscard]] std::vector<fs::path> listed() const {
    std::vector<fs::path> out;
    for (const auto& entry : fs::directory_iterator(where_.path())) {
      if (entry.path().filename().string().starts_with("checkpoint")) out.push_back(entry.path());
    }
    return out;
  }
  void save(Engine& engine, const char* name) const {
    fs::create_directory(where_.path() / "saving");
    engine.save_manifest(where_.path() / "saving");
    fs::rename(where_.path() / "saving", where_.path() / name);
  }

  const DurableRun run_{{.layers = 2, .tokens = 16, .micro_batches = 1}, 12};
  const Directory where_{"/dev/shm"};
  Settings settings_ = DurableRun::settings(where_.path(), 1, {0.5, 0, 0, 0});
  const fs::path volume_ = where_.path() / "0" / storage::kVolumeName;
};

TEST_F(TwoAtOnce, WhatTheFirstHasBegunMeanwhileIsGoneOnWith) {
  EXPECT_EQ(second_goes_on_after(settings_, settings_), 3U);
}

/// The second one has looked at the volumes before anything was committed, and would make them. That of the first path
/// still holds nothing when it has its lock, since its drive fails: it belongs to the run all the same.
TEST_F(TwoAtOnce, AVolumeThatTookNoCommitIsNotMadeAnewBesideOneThatDid) {
  const auto settings = DurableRun::settings(where_.path(), 2, {0.5, 0, 0, 0});
  auto failing = settings;
  const auto faults = std::make_shared<sys::Faults>();
  for (Bytes at = 0; at < 16 * MiB; at += 4096) faults->fail(sys::Operation::write, at, ENOSPC, 1'000'000);
  use_ring(failing, [&](const sys::File& file, unsigned depth) {
    const bool fails = file.path().parent_path() == volume_.parent_path();
    return fails ? sys::faulty(sys::make_ring, faults)(file, depth) : sys::make_ring(file, depth);
  });
  EXPECT_EQ(second_goes_on_after(failing, settings), 3U);
}

/// A process that begins the run anew is killed while another one, which has seen the steps, waits for the volume.
TEST_F(TwoAtOnce, AVolumeThatIsBeingPreparedMeanwhileIsLookedAtAgain) {
  leave_steps(2);
  std::optional<sys::File> anew(std::in_place, volume_, sys::FileOptions{.write = true});
  ASSERT_TRUE(anew->lock());
  const auto before = open_volumes();
  auto second = std::async(std::launch::async, [this] {
    Engine engine(run_.description(), settings_);
    return engine.start({.reopen = true}).has_step;
  });
  await_one_that_waits(before);
  auto superblock = storage::read_superblocks(*anew).superblock;
  superblock.ready = false;
  storage::write_superblocks(*anew, superblock);
  anew.reset();
  EXPECT_FALSE(second.get());
}

/// A process that found no volume makes one, while another one does and comes to three steps.
TEST_F(TwoAtOnce, StepsThatCameWhileItMadeItsVolumeAreGoneOnWith) {
  leave_steps(3);
  const fs::path aside = where_.path() / "aside", draft = volume_.string() + ".new";
  fs::rename(volume_, aside);
  std::optional<sys::File> making(std::in_place, draft, sys::FileOptions{.write = true, .create = true});
  ASSERT_TRUE(making->lock());
  auto second = std::async(std::launch::async, [this] {
    Engine engine(run_.description(), settings_);
    return engine.start({.reopen = true}).step;
  });
  await_one_that_waits(draft, 1);
  fs::rename(aside, volume_);
  making.reset();
  EXPECT_EQ(second.get(), 3U);
}

TEST_F(TwoAtOnce, CheckpointsThatTheFirstHasMadeMeanwhileKeepTheirPlaces) {
  std::future<void> second;
  {
    Engine first(run_.description(), settings_);
    first.start();
    run_.fill(first);
    run_.train(first, 1, 2);
    save(first, "checkpoint-2");
    const auto before = open_volumes();
    second = std::async(std::launch::async, [this] {
      Engine engine(run_.description(), settings_);
      const auto found = engine.start({.reopen = true, .pinned = [this] { return listed(); }});
      EXPECT_EQ(found.step, 4U);
      run_.train(engine, 5, 12);
      engine.close();
    });
    await_one_that_waits(before);
    run_.train(first, 3, 4);
    save(first, "checkpoint-4");
    fs::rename(where_.path() / "checkpoint-2", where_.path() / "gone");
    first.close();
  }
  second.get();
  Engine reader(run_.description(), settings_);
  EXPECT_EQ(reader.read_back(where_.path() / "checkpoint-4").step, 4U);
  EXPECT_TRUE(run_.holds(reader, 4));
}

TEST_F(TwoAtOnce, ACheckpointOnThePathsIsRefusedByAPlanThatKeepsNothingThere) {
  {
    Engine engine(run_.description(), settings_);
    engine.start();
    run_.fill(engine);
    run_.train(engine, 1, 2);
    save(engine, "checkpoint-2");
    engine.close();
  }
  auto plain = DurableRun::settings(where_.path(), 1, {1, 1, 1, 1}, plan::Durability::none);
  Engine engine(run_.description(), plain);
  try {
    engine.start({.reopen = true, .checkpoint = where_.path() / "checkpoint-2"});
    FAIL() << "the run began anew";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    EXPECT_NE(std::string(error.what()).find("this plan keeps nothing there"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace spillway
