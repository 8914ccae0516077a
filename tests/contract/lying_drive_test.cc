// A durable run on drives that acknowledge what they did not do: the next process goes on from a whole step, bit by
// bit, or is refused by name. docs/testing.md has the table.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "spillway/engine_testing.h"
#include "spillway/execute/journal_objects.h"
#include "spillway/storage/superblock.h"
#include "spillway/storage/volume.h"
#include "spillway/sys/lying_ring.h"
#include "spillway/sys/power_cut.h"
#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/nightly.h"
#include "tests/sys/failing.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

using storage::kSuperblockExtent;
using sys::Lie;
using sys::LieRule;
using sys::Operation;
using test::Directory;
using test::DurableRun;

/// Offsets in a volume's file.
struct Region {
  const char* name = "";
  Bytes first = 0, last = 0;
};

class LyingDrive : public ::testing::Test {
 protected:
  explicit LyingDrive(std::size_t paths = 2, std::uint64_t steps = 8)
      : run_({.layers = 2, .tokens = 16, .micro_batches = 1}, steps),
        settings_(DurableRun::settings(where_.path(), paths, {0.5, 0.2, 0, 0})) {}

  [[nodiscard]] journal::MetadataLayout metadata() const {
    return journal::MetadataLayout(execute::journal_spec(run_.description(), run_.description().layout(),
                                                         plan::Durability::step, "a run",
                                                         settings_.storage.places.size()));
  }
  /// Commits and records, by copy, and all of them.
  [[nodiscard]] std::vector<Region> regions() const {
    const auto layout = metadata();
    const auto at = [&](Bytes offset) { return kSuperblockExtent + offset; };
    const auto slots = layout.commit_slots();
    return {{"commits, copy 0", at(layout.commit(0, 0)), at(layout.commit(0, slots))},
            {"commits, copy 1", at(layout.commit(1, 0)), at(layout.commit(1, slots))},
            {"records, copy 0", at(layout.commit(0, slots)), at(layout.commit(1, 0))},
            {"records, copy 1", at(layout.commit(1, slots)), at(layout.bytes())},
            {"commits and records", at(0), at(layout.bytes())}};
  }
  [[nodiscard]] fs::path volume(std::size_t path) const {
    return settings_.storage.places[path].path / storage::kVolumeName;
  }
  /// Settings whose drives lie; `path`: the only one that does.
  [[nodiscard]] Settings lying(const std::shared_ptr<sys::Lies>& lies, std::optional<std::size_t> path = {}) const {
    auto out = settings_;
    use_ring(out, [=](const sys::File& file, unsigned depth) {
      const bool lies_here = !path || file.path().parent_path().filename() == std::to_string(*path);
      return lies_here ? sys::lying(sys::make_ring, lies)(file, depth) : sys::make_ring(file, depth);
    });
    return out;
  }

  /// What came of a process: the step that it went on from, or why it was refused.
  struct Outcome {
    std::optional<std::uint64_t> step;
    std::string refusal;
    std::vector<std::string> damage;
    [[nodiscard]] bool says(const std::string& part) const { return refusal.find(part) != std::string::npos; }
  };

  /// Trains anew to a step, however that ends.
  std::uint64_t train(const Settings& settings, std::uint64_t last) const {
    auto over = settings;
    over.storage.overwrite = true;
    std::uint64_t ended = 0;
    try {
      Engine engine(run_.description(), over);
      engine.start();
      run_.fill(engine);
      run_.train(engine, 1, last, [&](std::uint64_t step) { ended = step; });
      engine.flush();
      engine.close();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
    }
    return ended;
  }
  /// Goes on, compares with the run that was never interrupted, and trains to the last step.
  Outcome go_on(const Settings& settings, const OpenOptions& options = {.reopen = true}) const {
    Outcome out;
    try {
      Engine engine(run_.description(), settings);
      const auto found = engine.start(options);
      out.damage = found.damage;
      if (!found.has_step) return out;
      out.step = found.step;
      EXPECT_TRUE(run_.holds(engine, found.step));
      run_.train(engine, found.step + 1, run_.steps());
      EXPECT_TRUE(run_.holds(engine, run_.steps()));
      engine.close();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
      out.step.reset();
      out.refusal = error.what();
    }
    return out;
  }

  const DurableRun run_;
  const Directory where_{"/dev/shm"};
  const Settings settings_;
};

class LyingDriveOfOnePath : public LyingDrive {
 protected:
  LyingDriveOfOnePath() : LyingDrive(1) {}
};

struct Tally {
  std::uint64_t lies = 0;
  int whole = 0, older = 0, refused = 0;
};

/// A lie about one copy, or about one path, is about something that is there twice.
TEST_F(LyingDrive, LiesAboutTheRecordsOfOnePathLoseNothing) {
  std::map<std::string, Tally> tallies;
  for (const auto lie : {Lie::lost, Lie::misdirected, Lie::late}) {
    for (const auto& region : regions()) {
      for (const std::uint64_t skip : {1U, 5U, 12U}) {
        SCOPED_TRACE(text(static_cast<int>(lie), " ", region.name, " from write ", skip));
        const auto lies = std::make_shared<sys::Lies>();
        lies->add({.lie = lie,
                   .first = region.first,
                   .last = region.last,
                   .skip = skip,
                   .times = 3,
                   .distance = lie == Lie::late ? 7 : metadata().commit_bytes()});
        EXPECT_EQ(train(lying(lies, 1), 6), 6U);
        const auto outcome = go_on(settings_);
        EXPECT_EQ(outcome.step, 6U) << outcome.refusal;
        tallies[region.name].lies += lies->count();
        ASSERT_FALSE(HasFailure());
      }
    }
  }
  for (const auto& [name, tally] : tallies) EXPECT_GT(tally.lies, 5U) << name;
}

/// With one path, or on all of them, a lie takes every copy: the bits are still right, or the run is refused.
TEST_F(LyingDriveOfOnePath, LiesAboutEveryCopyNeverChangeABit) {
  Tally tally;
  for (const auto lie : {Lie::lost, Lie::misdirected, Lie::late}) {
    for (const std::uint64_t skip : {0U, 1U, 2U, 5U, 9U, 14U, 21U, 30U}) {
      for (const std::uint64_t times : {2U, 8U, 1000U}) {
        SCOPED_TRACE(text(static_cast<int>(lie), " from write ", skip, ", ", times, " times"));
        const auto lies = std::make_shared<sys::Lies>();
        const auto all = regions().back();
        lies->add({.lie = lie,
                   .first = all.first,
                   .last = all.last,
                   .skip = skip,
                   .times = times,
                   .distance = lie == Lie::late ? 5 : metadata().record_bytes()});
        const auto ended = train(lying(lies), 6);
        tally.lies += lies->count();
        const auto outcome = go_on(settings_);
        if (outcome.step) ++(*outcome.step == ended ? tally.whole : tally.older);
        if (!outcome.step) ++tally.refused;
        ASSERT_FALSE(HasFailure());
      }
    }
  }
  RecordProperty("lies", static_cast<int>(tally.lies));
  EXPECT_GT(tally.lies, 500U);
  EXPECT_GT(tally.whole, 5);
  EXPECT_GT(tally.refused, 5);
}

/// Reads of records that give another slot, nothing, or what was there before.
TEST_F(LyingDriveOfOnePath, ReadsThatLieNeverChangeABit) {
  train(settings_, 3);
  const auto image = where_.path() / "image";
  fs::copy_file(volume(0), image);
  const auto lives = [&] { return go_on(settings_, {.reopen = true, .if_found = true}).step; };
  ASSERT_EQ(lives(), 3U);
  const auto whole = where_.path() / "whole";
  fs::copy_file(volume(0), whole);
  int right = 0, refused = 0;
  for (const auto lie : {Lie::lost, Lie::misdirected, Lie::stale}) {
    for (const auto& region : regions()) {
      for (const std::uint64_t times : {1U, 2U, 1000U}) {
        SCOPED_TRACE(text(static_cast<int>(lie), " ", region.name, ", ", times, " times"));
        const auto lies = std::make_shared<sys::Lies>();
        lies->add({.lie = lie,
                   .operation = Operation::read,
                   .first = region.first,
                   .last = region.last,
                   .times = times,
                   .distance = metadata().commit_bytes(),
                   .image = image});
        const auto outcome = go_on(lying(lies), {.reopen = true, .if_found = true});
        ++(outcome.step ? right : refused);
        ASSERT_FALSE(HasFailure());
        fs::copy_file(whole, volume(0), fs::copy_options::overwrite_existing);
      }
    }
  }
  EXPECT_GT(right, 5);
  EXPECT_GT(refused, 2);
}

// ---- time travel

class TimeTravel : public LyingDrive {
 protected:
  explicit TimeTravel(std::size_t paths = 2, std::uint64_t steps = 8) : LyingDrive(paths, steps) {
    over_.storage.overwrite = true;
  }

  /// A run of all steps but two, with a checkpoint after each of `checkpoints`; an image of every volume and of the
  /// checkpoints is there after each of `images`. `last`: the step after which the checkpoints are given up; 0: none
  /// is.
  void live(const std::vector<std::uint64_t>& images, const std::vector<std::uint64_t>& checkpoints = {},
            std::uint64_t last = 0) const {
    auto settings = over_;
    settings.budget.checkpoints = 4;
    Engine engine(run_.description(), settings);
    engine.start();
    run_.fill(engine);
    fs::create_directories(output_);
    run_.train(engine, 1, run_.steps() - 2, [&](std::uint64_t step) {
      if (std::ranges::find(checkpoints, step) != checkpoints.end()) {
        fs::create_directory(checkpoint(step));
        engine.save_manifest(checkpoint(step));
      }
      if (step == last) {
        for (const auto& directory : pinned()()) give_up(engine, directory);
      }
      if (std::ranges::find(images, step) == images.end()) return;
      engine.flush();
      for (std::size_t p = 0; p < settings.storage.places.size(); ++p) fs::copy_file(volume(p), image(p, step));
      fs::copy(output_, text(output_.string(), "-", step), fs::copy_options::recursive);
    });
    engine.flush();
    engine.close();
  }
  static void give_up(Engine& engine, const fs::path& directory) {
    std::vector<std::byte> manifest(fs::file_size(directory / "manifest.bin"));
    sys::File(directory / "manifest.bin").read(manifest, 0);
    fs::remove_all(directory);
    engine.release_manifest(manifest);
  }
  [[nodiscard]] fs::path image(std::size_t path, std::uint64_t step) const {
    return where_.path() / text("image-", path, "-", step);
  }
  [[nodiscard]] fs::path checkpoint(std::uint64_t step) const { return output_ / text("checkpoint-", step); }
  void put_back(std::size_t path, std::uint64_t step) const {
    fs::copy_file(image(path, step), volume(path), fs::copy_options::overwrite_existing);
  }
  [[nodiscard]] std::function<std::vector<fs::path>()> pinned() const {
    return [this] {
      std::vector<fs::path> out;
      for (const auto& entry : fs::directory_iterator(output_)) out.push_back(entry.path());
      return out;
    };
  }

  const fs::path output_ = where_.path() / "output";
  Settings over_ = settings_;
};

class TimeTravelOfOnePath : public TimeTravel {
 protected:
  TimeTravelOfOnePath() : TimeTravel(1, 42) {}  // steps enough to use every place of the volume again
};

TEST_F(TimeTravel, OnePathThatWentBackIsRefusedByNameAndSteps) {
  for (const std::size_t path : {0U, 1U}) {
    SCOPED_TRACE(text("path ", path));
    fs::remove(image(0, 2));
    fs::remove(image(1, 2));
    fs::remove_all(text(output_.string(), "-2"));
    live({2});
    put_back(path, 2);
    const auto outcome = go_on(settings_);
    EXPECT_FALSE(outcome.step);
    for (const auto& part : {volume(path).string(), text("path:", path), std::string("went back to an earlier state"),
                             std::string("newest commit is of step 2"), std::string("Nothing was written")}) {
      EXPECT_TRUE(outcome.says(part)) << part << " in: " << outcome.refusal;
    }
    const auto verified = Engine(run_.description(), settings_).verify({});
    EXPECT_TRUE(std::ranges::any_of(verified.damage, [&](const auto& it) {
      return it.path == text("path:", path) && it.what.find("went back") != std::string::npos;
    }));
  }
}

/// Commits and records are on both paths: where no piece lay on the path that went back, nothing is lost.
TEST_F(TimeTravel, RecordsAloneThatWentBackAreReadFromTheOtherPath) {
  live({3});
  const auto head = kSuperblockExtent + metadata().bytes();
  std::vector<std::byte> bytes(head);
  sys::File(image(1, 3)).read(bytes, 0);
  sys::File(volume(1), {.write = true}).write(bytes, 0);
  const auto outcome = go_on(settings_);
  EXPECT_EQ(outcome.step, 6U) << outcome.refusal;
  EXPECT_TRUE(std::ranges::any_of(outcome.damage, [](const std::string& it) {
    return it.find("path:1") != std::string::npos && it.find("the newest is of step 3") != std::string::npos;
  }));
}

TEST_F(TimeTravel, ThePathsThatWentBackBehindACheckpointAreRefusedWithIt) {
  live({2}, {4});
  for (const std::size_t path : {0U, 1U}) put_back(path, 2);
  const auto outcome = go_on(settings_, {.reopen = true, .pinned = pinned()});
  EXPECT_FALSE(outcome.step);
  for (const auto& part : {checkpoint(4).string(), std::string("made when step 4 was durable"),
                           std::string("newest commit on the storage paths is of step 2")}) {
    EXPECT_TRUE(outcome.says(part)) << outcome.refusal;
  }
  const auto verified = Engine(run_.description(), settings_).verify({checkpoint(4)});
  EXPECT_TRUE(
      std::ranges::any_of(verified.damage, [&](const auto& it) { return it.file.parent_path() == checkpoint(4); }));
  EXPECT_FALSE(go_on(settings_, {.reopen = true, .checkpoint = checkpoint(4), .pinned = pinned()}).step);
  fs::remove_all(checkpoint(4));
  EXPECT_EQ(go_on(settings_, {.reopen = true, .pinned = pinned()}).step, 2U) << "all of them went back alike";
}

TEST_F(TimeTravel, StepsThatTheCallerKnowsAndThePathsLostAreTold) {
  live({2});
  for (const std::size_t path : {0U, 1U}) put_back(path, 2);
  Engine engine(run_.description(), settings_);
  const auto found = engine.start({.reopen = true, .known_step = 5});
  EXPECT_EQ(found.step, 2U);
  EXPECT_EQ(found.lost_until, 5U);
  EXPECT_NE(found.words().find("without steps 3 to 5, which had been durable"), std::string::npos) << found.words();
  EXPECT_TRUE(run_.holds(engine, 2));
  engine.close();
  EXPECT_EQ(Engine(run_.description(), settings_).start({.reopen = true, .known_step = 2}).lost_until, std::nullopt);
}

/// A checkpoint that had been removed is there again, and its places hold what came later.
TEST_F(TimeTravelOfOnePath, ACheckpointThatCameBackIsRefusedWhereItsPlacesWereUsedAgain) {
  live({2}, {1}, 3);
  fs::remove_all(output_);
  fs::rename(text(output_.string(), "-2"), output_);
  const auto outcome = go_on(settings_, {.reopen = true, .pinned = pinned()});
  EXPECT_TRUE(outcome.says("its places used again")) << outcome.refusal;
  EXPECT_TRUE(outcome.says(checkpoint(1).string())) << outcome.refusal;
  fs::remove_all(checkpoint(1));
  EXPECT_EQ(go_on(settings_, {.reopen = true, .pinned = pinned()}).step, run_.steps() - 2);
}

// ---- superblocks

/// Of a growth, or of a making anew, the drive lost the write of either copy.
TEST_F(LyingDriveOfOnePath, ALostSuperblockWriteLosesNoStep) {
  for (const auto lost : storage::kSuperblockOffsets) {
    SCOPED_TRACE(text("the copy at byte ", lost));
    train(settings_, 4);
    const sys::File file(volume(0), {.write = true});
    auto older = storage::read_superblocks(file).superblock;
    older.ready = false;  // as it stood when the volume was prepared
    std::vector<std::byte> page(storage::kSuperblockBytes);
    storage::encode(older, page);
    file.write(page, lost);
    const auto outcome = go_on(settings_);
    EXPECT_EQ(outcome.step, 4U) << outcome.refusal;
  }
}

// ---- flushes

/// A server that restarts without what it said was flushed: every write since its last honest flush is gone, or some.
TEST_F(LyingDrive, FlushesThatLieNeverChangeABit) {
  std::mt19937_64 random(7);
  int whole = 0, older = 0, refused = 0;
  for (int round = 0; round < spillway::testing::few_or(24, 200); ++round) {
    const auto power = std::make_shared<sys::PowerCut>();
    const bool one = round % 3 == 0;
    power->lie_from(random() % 20, one ? volume(round % 2) : fs::path());
    auto cut = settings_;
    use_ring(cut, sys::power_cut(sys::make_thread_ring, power));
    ASSERT_EQ(train(cut, 6), 6U);
    ASSERT_GT(power->false_syncs(), 0U);
    const auto seed = round % 2 == 0 ? sys::PowerCut::kNothing : random();
    for (std::size_t p = 0; p < settings_.storage.places.size(); ++p) {
      power->image(volume(p), seed).save(where_.path() / "left");
      fs::rename(where_.path() / "left", volume(p));
    }
    const auto outcome = go_on(settings_, {.reopen = true, .if_found = true});
    ASSERT_FALSE(HasFailure()) << "round " << round;
    if (outcome.step) ++(*outcome.step >= 5 ? whole : older);
    if (!outcome.step) ++refused;
  }
  EXPECT_GT(older + refused, 5);
  EXPECT_GT(whole + older + refused, 23);
}

}  // namespace
}  // namespace spillway
