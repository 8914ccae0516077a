// A bit or a sector that is not what was written: found, named, and never taken for what it is not.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>

#include "spillway/base/blank.h"
#include "spillway/execute/journal_objects.h"
#include "spillway/execute/volumes.h"
#include "spillway/journal/path_media.h"
#include "spillway/journal/recovery.h"
#include "spillway/storage/superblock.h"
#include "spillway/storage/volume.h"
#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/nightly.h"

namespace spillway {
namespace {

using test::Directory;
using test::DurableRun;

struct Range {
  Bytes begin = 0, end = 0;
};

class Flip : public ::testing::Test {
 protected:
  Flip() {
    Engine engine(run_.description(), settings_);
    engine.start();
    run_.fill(engine);
    run_.train(engine, 1, run_.steps());
    engine.close();
    file_ = where_.path() / "0" / storage::kVolumeName;
    std::ifstream in(file_, std::ios::binary);
    whole_.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    find_ranges();
  }

  /// What lies where, by the journal's own account.
  void find_ranges() {
    const auto layout = run_.description().layout();
    const auto spec = execute::journal_spec(run_.description(), layout, plan::Durability::step, "a run", 1);
    const journal::MetadataLayout metadata(spec);
    const execute::VolumeSettings volumes{{.places = {{where_.path() / "0"}}, .keep = true}, "a run"};
    const std::vector<Bytes> as_they_are{0};
    const auto paths =
        execute::open_volumes(volumes, as_they_are, metadata.bytes(), execute::fingerprint(run_.description(), layout),
                              execute::VolumeMode::reopen);
    journal::PathMedia media({paths[0].get()});
    const auto recovered = journal::recover(spec, media);
    ASSERT_FALSE(recovered.gradients.empty()) << "nothing to replay";
    for (const auto* list : {&recovered.snapshots, &recovered.gradients}) {
      for (const auto& object : *list) {
        for (const auto& piece : object.stored.pieces) {
          const auto at = storage::kSuperblockExtent + metadata.bytes() + piece.place.piece * storage::kExtentAlignment;
          data_.push_back({at, at + piece.bytes});
        }
      }
    }
    for (Bytes at = 0; at < metadata.used(); at += journal::kMetadataAlignment) {
      const auto first = storage::kSuperblockExtent + at;
      const auto slot = std::as_bytes(std::span(whole_)).subspan(first, journal::kMetadataAlignment);
      if (!blank(slot)) records_.push_back({first, first + journal::kMetadataAlignment});
    }
    for (const auto at : storage::kSuperblockOffsets) superblocks_.push_back({at, at + storage::kSuperblockBytes});
  }

  /// Changes one bit, or makes one sector another one; tells the first byte that changed.
  static Bytes spoil(std::vector<char>& bytes, const Range& range, std::mt19937_64& random) {
    const auto at = range.begin + random() % (range.end - range.begin);
    if (random() % 2 == 0) {
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
      return at;
    }
    const auto sector = at / 512 * 512;
    for (Bytes i = sector; i < sector + 512; ++i) bytes[i] = static_cast<char>(random());
    return sector;
  }

  void write(const std::vector<char>& bytes, const Range& range) const {
    std::fstream out(file_, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(range.begin));
    out.write(bytes.data() + range.begin, static_cast<std::streamsize>(range.end - range.begin));
  }

  const DurableRun run_{{.layers = 1, .tokens = 16, .micro_batches = 1}, 5};
  const Directory where_{"/dev/shm"};
  const Settings settings_ = DurableRun::settings(where_.path(), 1, {0.5, 0.5, 0.5, 0.5});
  std::filesystem::path file_;
  std::vector<char> whole_;
  std::vector<Range> data_, records_, superblocks_;
};

TEST_F(Flip, AnyIsFoundAndNamedAndNoneIsUsed) {
  std::mt19937_64 random(1);
  int used = 0, refused = 0;
  for (int round = 0; round < spillway::testing::few_or(300, 1000); ++round) {
    const auto& kind = round % 4 == 0 ? records_ : round % 16 == 1 ? superblocks_ : data_;
    const auto range = kind[random() % kind.size()];
    const std::vector<char> before(whole_.begin() + static_cast<std::ptrdiff_t>(range.begin),
                                   whole_.begin() + static_cast<std::ptrdiff_t>(range.end));
    const auto at = spoil(whole_, range, random);
    write(whole_, range);
    std::ranges::copy(before, whole_.begin() + static_cast<std::ptrdiff_t>(range.begin));
    const auto verified = Engine(run_.description(), settings_).verify({});
    bool named = false;
    for (const auto& damage : verified.damage) {
      named = named || (damage.file == file_ && damage.offset <= at && at < damage.offset + damage.bytes &&
                        damage.path == "path:0" && !damage.what.empty());
    }
    ASSERT_TRUE(named) << "round " << round << ": byte " << at << ", " << verified.damage.size() << " others";
    if (round % 5 == 0) {  // whoever goes on regardless gets the right bits, or an error
      try {
        Engine engine(run_.description(), settings_);
        const auto found = engine.start({.reopen = true});
        ASSERT_TRUE(found.has_step);
        ASSERT_EQ(found.step, run_.steps());
        ASSERT_TRUE(run_.holds(engine, run_.steps())) << "round " << round;
        ++used;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::corrupt) << error.what();
        ++refused;
      }
      write(whole_, {0, whole_.size()});
    } else {
      write(whole_, range);
    }
  }
  EXPECT_GT(used, 10) << "records and superblocks are there twice";
  EXPECT_GT(refused, 10);
  EXPECT_TRUE(Engine(run_.description(), settings_).verify({}).damage.empty());
}

TEST_F(Flip, BothSuperblocksAreFoundToo) {
  auto bytes = whole_;
  for (const auto& range : superblocks_) {
    bytes[range.begin + 100] = static_cast<char>(bytes[range.begin + 100] ^ 1);
    write(bytes, range);
  }
  const auto verified = Engine(run_.description(), settings_).verify({});
  ASSERT_FALSE(verified.damage.empty());
  EXPECT_NE(verified.damage.front().what.find("superblock"), std::string::npos);
  EXPECT_THROW(Engine(run_.description(), settings_).start({.reopen = true}), Error);
}

}  // namespace
}  // namespace spillway
