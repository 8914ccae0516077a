// A durable run of which one path has lost, or never taken, what the others hold; and records and manifests whose bytes
// are whole and say what cannot be. What was committed is recovered or refused, and a refusal changes nothing.
#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>
#include <functional>

#include "spillway/engine_testing.h"
#include "spillway/execute/journal_objects.h"
#include "spillway/journal/manifest.h"
#include "spillway/storage/superblock.h"
#include "spillway/storage/volume.h"
#include "spillway/sys/faulty_ring.h"
#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/sys/failing.h"

namespace spillway {
namespace {

using storage::kSuperblockExtent;
using test::Directory;
using test::DurableRun;

class LostCopy : public ::testing::Test {
 protected:
  explicit LostCopy(std::size_t paths = 2) : settings_(DurableRun::settings(where_.path(), paths, {0.5, 0, 0, 0})) {}

  void train(const Settings& settings, std::uint64_t steps) const {
    Engine engine(run_.description(), settings);
    engine.start();
    run_.fill(engine);
    run_.train(engine, 1, steps);
    engine.close();
  }

  void expect_goes_on_after(std::uint64_t step) const {
    Engine engine(run_.description(), settings_);
    const auto found = engine.start({.reopen = true, .if_found = true});
    ASSERT_TRUE(found.has_step);
    ASSERT_EQ(found.step, step);
    ASSERT_TRUE(run_.holds(engine, step));
    run_.train(engine, step + 1, run_.steps());
    ASSERT_TRUE(run_.holds(engine, run_.steps()));
    engine.close();
  }

  [[nodiscard]] std::filesystem::path volume(std::size_t path) const {
    return settings_.storage.places[path].path / storage::kVolumeName;
  }
  [[nodiscard]] std::vector<std::vector<char>> volumes() const {
    std::vector<std::vector<char>> out;
    for (std::size_t p = 0; p < settings_.storage.places.size(); ++p) out.push_back(bytes_of(volume(p)));
    return out;
  }
  static std::vector<char> bytes_of(const std::filesystem::path& file) {
    std::vector<char> out(std::filesystem::file_size(file));
    std::ifstream(file, std::ios::binary).read(out.data(), static_cast<std::streamsize>(out.size()));
    return out;
  }
  static void write(const std::filesystem::path& file, Bytes at, std::span<const std::byte> bytes) {
    std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(at));
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  /// Of the records of the run.
  [[nodiscard]] journal::MetadataLayout metadata() const {
    return journal::MetadataLayout(execute::journal_spec(run_.description(), run_.description().layout(),
                                                         plan::Durability::step, "a run",
                                                         settings_.storage.places.size()));
  }
  void blank_metadata(std::size_t path) const {
    write(volume(path), kSuperblockExtent, std::vector<std::byte>(metadata().bytes()));
  }

  const DurableRun run_{{.layers = 2, .tokens = 16, .micro_batches = 1}, 6};
  const Directory where_{"/dev/shm"};
  const Settings settings_;
};

/// Its first commit cannot be written, so that the path is left out; the run goes on, ends, and is resumed.
TEST_F(LostCopy, APathThatNeverTookACommitDoesNotMakeTheRunBeginAnew) {
  const auto faults = std::make_shared<sys::Faults>();
  for (Bytes at = 0; at < 16 * MiB; at += 4096) faults->fail(sys::Operation::write, at, EIO, 1'000'000);
  auto failing = settings_;
  int rings = 0;  // of the paths in their order
  use_ring(failing, [&](const sys::File& file, unsigned depth) {
    return rings++ == 0 ? sys::faulty(sys::make_ring, faults)(file, depth) : sys::make_ring(file, depth);
  });
  train(failing, 4);
  expect_goes_on_after(4);
}

TEST_F(LostCopy, WhatOnePathHasLostTheOtherHas) {
  train(settings_, 4);
  for (const std::size_t path : {0U, 1U}) {
    SCOPED_TRACE(text("path ", path));
    const auto before = volumes();
    blank_metadata(path);
    const auto verified = Engine(run_.description(), settings_).verify({});
    ASSERT_EQ(verified.damage.size(), 1U);
    EXPECT_EQ(verified.damage.front().path, text("path:", path));
    EXPECT_EQ(verified.damage.front().offset, kSuperblockExtent);
    ASSERT_NO_FATAL_FAILURE(expect_goes_on_after(4));
    for (std::size_t p = 0; p < before.size(); ++p) write(volume(p), 0, std::as_bytes(std::span(before[p])));
  }
}

TEST_F(LostCopy, NothingThatHoldsACommitIsMadeAnewUnasked) {
  train(settings_, 4);
  const auto before = volumes();
  EXPECT_ERROR(Engine(run_.description(), settings_).start(), ErrorCode::bad_input, "start anew with --overwrite");
  auto plain = settings_;  // whose volumes would have no records
  plain.budget.durability = plan::Durability::none;
  EXPECT_ERROR(Engine(run_.description(), plain).start(), ErrorCode::bad_input, "start anew with --overwrite");
  EXPECT_EQ(before, volumes());
  ASSERT_NO_FATAL_FAILURE(expect_goes_on_after(4));
  auto over = settings_;
  over.storage.overwrite = true;
  train(over, 2);
  expect_goes_on_after(2);
}

TEST_F(LostCopy, WhatIsOnlyToBeGoneOnWithIsLeftAloneWhenNothingIsFound) {
  Engine engine(run_.description(), settings_);
  EXPECT_FALSE(engine.start({.reopen = true, .if_found = true}).has_step);
  EXPECT_FALSE(std::filesystem::exists(volume(0)) || std::filesystem::exists(volume(1)));
  EXPECT_THROW((void)engine.memory(), Error) << "it is not started";
  train(settings_, 4);
  blank_metadata(0);
  blank_metadata(1);
  const auto before = volumes();
  EXPECT_FALSE(engine.start({.reopen = true, .if_found = true}).has_step);
  EXPECT_FALSE(engine.start({.reopen = true, .if_found = true, .at_least = 9}).has_step);
  EXPECT_EQ(before, volumes());
}

/// One volume of a set that was made anew, without a commit, beside one of before.
TEST_F(LostCopy, AMakingAnewThatWasInterruptedGoesOnOnlyWhenAsked) {
  train(settings_, 4);
  const auto old = volumes();
  auto over = settings_;
  over.storage.overwrite = true;
  train(over, 1);
  blank_metadata(0);
  write(volume(1), 0, std::as_bytes(std::span(old[1])));
  const auto before = volumes();
  EXPECT_ERROR(Engine(run_.description(), settings_).start({.reopen = true}), ErrorCode::bad_input,
               "was being begun anew when that was interrupted");
  EXPECT_EQ(before, volumes());
  Engine engine(run_.description(), over);
  EXPECT_FALSE(engine.start({.reopen = true}).has_step);
  run_.fill(engine);
  run_.train(engine, 1, 2);
  engine.close();
  expect_goes_on_after(2);
}

/// A checkpoint after step 4, whose manifest is written again with other contents and checksums that are right.
class Crafted : public LostCopy {
 protected:
  using Change = std::function<void(journal::Manifest&)>;

  explicit Crafted(std::size_t paths = 2) : LostCopy(paths) {}

  void save(std::uint64_t step) {
    Engine engine(run_.description(), settings_);
    engine.start();
    run_.fill(engine);
    run_.train(engine, 1, step);
    std::filesystem::create_directory(checkpoint_);
    engine.save_manifest(checkpoint_);
    engine.close();
  }
  void craft(const Change& change) const {
    const auto bytes = bytes_of(checkpoint_ / "manifest.bin");
    auto manifest = journal::decode_manifest(std::as_bytes(std::span(bytes)), metadata().identity());
    change(manifest);
    const auto out = journal::encode(manifest);
    std::ofstream(checkpoint_ / "manifest.bin", std::ios::binary)
        .write(reinterpret_cast<const char*>(out.data()), static_cast<std::streamsize>(out.size()));
  }

  const std::filesystem::path checkpoint_ = where_.path() / "checkpoint-4";
};

TEST_F(Crafted, AManifestThatSaysWhatCannotBeIsRefusedByItsName) {
  save(4);
  const auto whole = bytes_of(checkpoint_ / "manifest.bin");
  const auto before = volumes();
  const std::vector<std::pair<const char*, Change>> changes = {
      {"a longer piece", [](auto& it) { it.snapshots[0].pieces[0].bytes += 4096; }},
      {"a piece longer than one can be", [](auto& it) { it.snapshots[0].pieces[0].bytes = 1U << 24; }},
      {"a piece of nothing", [](auto& it) { it.snapshots[0].pieces[0].bytes = 0; }},
      {"a length that is not aligned", [](auto& it) { it.snapshots[0].pieces[0].bytes -= 7; }},
      {"more pieces",
       [](auto& it) { it.snapshots[1].pieces.insert(it.snapshots[1].pieces.begin(), 300, it.snapshots[1].pieces[0]); }},
      {"fewer pieces", [](auto& it) { it.snapshots[1].pieces.pop_back(); }},
      {"no pieces", [](auto& it) { it.snapshots[1].pieces.clear(); }},
      {"another path", [](auto& it) { it.snapshots[0].pieces[0].place.path = 2; }},
      {"a path far away", [](auto& it) { it.snapshots[0].pieces[0].place.path = 0xFFFFFFF0; }},
      {"a place behind the volume", [](auto& it) { it.snapshots[0].pieces[0].place.piece = 0x7FFFFFFF; }},
      {"another part", [](auto& it) { it.snapshots[0].pieces[0].part = 9; }},
      {"one place twice", [](auto& it) { it.snapshots[1].pieces = it.snapshots[0].pieces; }},
      {"a snapshot of later", [](auto& it) { it.snapshots[0].version = 99; }},
      {"a snapshot of before", [](auto& it) { it.snapshots[0].version = 1; }},
      {"fewer chunks", [](auto& it) { it.snapshots.pop_back(); }},
      {"a commit that fits into no slot", [](auto& it) { it.commit.payload.resize(4 * MiB); }},
      {"ancestors without number", [](auto& it) { it.commit.ancestors.resize(10'000); }},
      {"gradients that are not there", [](auto& it) { it.commit.gradients.resize(10'000); }},
  };
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    write(checkpoint_ / "manifest.bin", 0, std::as_bytes(std::span(whole)));
    std::filesystem::resize_file(checkpoint_ / "manifest.bin", whole.size());
    craft(change);
    const auto file = (checkpoint_ / "manifest.bin").string();
    EXPECT_ERROR(Engine(run_.description(), settings_).read_back(checkpoint_), ErrorCode::corrupt, file);
    EXPECT_ERROR(Engine(run_.description(), settings_)
                     .start({.reopen = true, .pinned = [this] { return std::vector{checkpoint_}; }}),
                 ErrorCode::corrupt, file);
    EXPECT_ERROR(Engine(run_.description(), settings_).start({.reopen = true, .checkpoint = checkpoint_}),
                 ErrorCode::corrupt, file);
    const auto verified = Engine(run_.description(), settings_).verify({checkpoint_});
    ASSERT_EQ(verified.damage.size(), 1U);
    EXPECT_EQ(verified.damage.front().file, file);
    EXPECT_EQ(before, volumes());
  }
}

/// A checkpoint of step 4, and step 5 after it, of which a second path was told nothing.
class Unread : public Crafted, public ::testing::WithParamInterface<std::size_t> {
 protected:
  Unread() : Crafted(GetParam()) {
    save(4);
    Engine engine(run_.description(), failing(sys::Operation::write, 1));
    EXPECT_EQ(engine.start({.reopen = true, .pinned = pinned()}).step, 4U);
    run_.train(engine, 5, 5);
    engine.close();
  }

  [[nodiscard]] std::function<std::vector<std::filesystem::path>()> pinned() const {
    return [this] { return std::vector{checkpoint_}; };
  }
  /// Settings with which the drive of a path does so wherever its records and commits lie.
  [[nodiscard]] Settings failing(sys::Operation operation, std::size_t path) const {
    const auto faults = std::make_shared<sys::Faults>();
    for (Bytes at = 0; at < metadata().bytes(); at += 4096) {
      faults->fail(operation, kSuperblockExtent + at, EIO, 1'000'000);
    }
    auto out = settings_;
    use_ring(out, [=](const sys::File& file, unsigned depth) {
      const bool fails = file.path().parent_path().filename() == std::to_string(path);
      return fails ? sys::faulty(sys::make_ring, faults)(file, depth) : sys::make_ring(file, depth);
    });
    return out;
  }
};

/// It would take a generation that was there, and the slots of what it does not know.
TEST_P(Unread, NothingIsWrittenWhereCommitsCannotBeRead) {
  const auto before = volumes();
  const std::vector<OpenOptions> starts = {
      {.reopen = true, .checkpoint = checkpoint_, .pinned = pinned()},
      {.reopen = true, .pinned = pinned()},
      {.reopen = true, .if_found = true, .at_least = 9, .pinned = pinned()},
      {.reopen = true, .at_least = 9},
  };
  for (const auto& start : starts) {
    EXPECT_ERROR(Engine(run_.description(), failing(sys::Operation::read, 0)).start(start), ErrorCode::io,
                 "commits of the run cannot be read");
    EXPECT_EQ(before, volumes());
  }
  expect_goes_on_after(5);
}

INSTANTIATE_TEST_SUITE_P(Paths, Unread, ::testing::Values(1, 2));

/// Of the snapshot of the first chunk, in every slot that holds one, on so many copies.
class CraftedRecord : public LostCopy {
 protected:
  using Change = std::function<void(std::vector<journal::Piece>&)>;

  void craft(std::uint32_t copies, const Change& change) const {
    const auto layout = metadata();
    for (std::size_t p = 0; p < settings_.storage.places.size(); ++p) {
      const auto all = bytes_of(volume(p));
      for (std::uint32_t copy = 0; copy < copies; ++copy) {
        for (std::uint32_t slot = 0; slot < journal::kSnapshotSlots; ++slot) {
          const auto at = kSuperblockExtent + layout.record(journal::ObjectKind::snapshot, 0, copy, slot);
          const auto bytes = std::as_bytes(std::span(all)).subspan(at, layout.record_bytes());
          journal::RecordHead head;
          std::vector<journal::Piece> pieces;
          if (journal::decode(bytes, layout.identity(), head, pieces) != journal::SlotState::whole) continue;
          change(pieces);
          std::vector<std::byte> out(layout.record_bytes());
          journal::encode(head, pieces, layout.identity(), out);
          write(volume(p), at, out);
        }
      }
    }
  }
};

TEST_F(CraftedRecord, CountsAsDamaged) {
  train(settings_, 4);
  const auto whole = volumes();
  const std::vector<std::pair<const char*, Change>> changes = {
      {"a longer piece", [](auto& pieces) { pieces[0].bytes += 4096; }},
      {"more pieces", [](auto& pieces) { pieces.insert(pieces.begin(), 100, pieces[0]); }},
      {"another path", [](auto& pieces) { pieces[0].place.path = 1U << 30; }},
      {"a place behind the volume", [](auto& pieces) { pieces[0].place.piece = 1U << 30; }},
  };
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    craft(1, change);
    EXPECT_FALSE(Engine(run_.description(), settings_).verify({}).damage.empty());
    EXPECT_TRUE(Engine(run_.description(), settings_).start({.reopen = true}).has_step) << "the other copy is whole";
    for (std::size_t p = 0; p < whole.size(); ++p) write(volume(p), 0, std::as_bytes(std::span(whole[p])));
    craft(journal::kCopies, change);
    const auto before = volumes();
    EXPECT_ERROR(Engine(run_.description(), settings_).start({.reopen = true}), ErrorCode::corrupt,
                 "no whole record of the snapshot of");
    EXPECT_ERROR(Engine(run_.description(), settings_).read_back(std::nullopt), ErrorCode::corrupt, "are damaged");
    EXPECT_EQ(before, volumes());
    for (std::size_t p = 0; p < whole.size(); ++p) write(volume(p), 0, std::as_bytes(std::span(whole[p])));
  }
}

}  // namespace
}  // namespace spillway
