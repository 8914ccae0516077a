#include "spillway/journal/record_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::journal {
namespace {

/// A chunk of 1.5 MiB of weight and 8 KiB of state, one that is constant and has no state, a gradient of 1 MiB, and one
/// that may have up to 2 MiB; two paths of 4 and 2 MiB.
class RecordCheckTest : public ::testing::Test {
 protected:
  RecordCheckTest()
      : spec_{.run = "run",
              .paths = 2,
              .chunks = {{.pieces = 3}, {.constant = true}},
              .gradients = {{.pieces = 1}, {.pieces = 2}}},
        check_(spec_,
               {.snapshots = {{MiB + 512 * KiB, 8 * KiB}, {4 * KiB, 0}}, .gradients = {{MiB, false}, {2 * MiB, true}}},
               {4 * MiB, 2 * MiB}) {}

  static Piece piece(std::uint32_t path, std::uint32_t place, Bytes bytes, std::uint32_t part = 0) {
    return {{path, place}, static_cast<std::uint32_t>(bytes), part, 0};
  }
  static std::vector<Piece> good_chunk() { return {piece(0, 0, MiB), piece(1, 0, 512 * KiB), piece(0, 1, 8 * KiB, 1)}; }
  static Manifest good_manifest() {
    Manifest out;
    out.commit.step = 6;
    out.commit.previous = 5;
    out.snapshots = {{0, 6, good_chunk()}, {1, 2, {piece(0, 3, 4 * KiB)}}};
    return out;
  }
  /// The objection to the good snapshot of chunk 0 with a change.
  std::string changed(const std::function<void(std::vector<Piece>&)>& change) const {
    auto pieces = good_chunk();
    change(pieces);
    return check_.objection(ObjectKind::snapshot, 0, pieces);
  }
  std::string changed_manifest(const std::function<void(Manifest&)>& change) const {
    auto manifest = good_manifest();
    change(manifest);
    return check_.objection(manifest);
  }

  JournalSpec spec_;
  RecordCheck check_;
};

TEST_F(RecordCheckTest, HasNothingAgainstWhatCanBe) {
  EXPECT_EQ(check_.objection(ObjectKind::snapshot, 0, good_chunk()), "");
  EXPECT_EQ(check_.objection(ObjectKind::gradient, 0, std::vector{piece(1, 1, MiB)}), "");
  EXPECT_EQ(check_.objection(good_manifest()), "");
}

TEST_F(RecordCheckTest, ObjectsToPlacesThatTheRunDoesNotHave) {
  EXPECT_EQ(changed([](auto& it) { it[1].place.path = 2; }), "it names path 2 of 2");
  EXPECT_EQ(changed([](auto& it) { it[1].place.piece = 2; }), "it names piece 2 of path 1, which has 2");
  EXPECT_EQ(check_.objection(ObjectKind::snapshot, 2, good_chunk()), "it is of object 2 of 2");
  EXPECT_EQ(check_.objection(ObjectKind::gradient, 9, good_chunk()), "it is of object 9 of 2");
}

TEST_F(RecordCheckTest, ObjectsToLengthsThatNoPieceHas) {
  for (const std::uint32_t bytes : {0U, 7U, 4097U, 2U << 20}) {
    EXPECT_EQ(changed([&](auto& it) { it[0].bytes = bytes; }),
              "it names a piece of " + std::to_string(bytes) + " bytes");
  }
}

TEST_F(RecordCheckTest, ObjectsToLengthsThatAreNotThoseOfTheParts) {
  EXPECT_EQ(changed([](auto& it) { it[1].bytes -= 4096; }), "piece 1 has 520192 bytes instead of 524288");
  EXPECT_EQ(changed([](auto& it) { it.pop_back(); }), "part 1 lacks 8192 bytes");
  EXPECT_EQ(changed([](auto& it) { it[2].part = 0; }), "part 1 lacks 8192 bytes");
  EXPECT_EQ(changed([](auto& it) { it.push_back(it.back()); }), "it has 4 pieces instead of 3");
}

TEST_F(RecordCheckTest, AGradientThatVariesHasAtMostItsBytes) {
  const auto objection = [&](const std::vector<Piece>& pieces) {
    return check_.objection(ObjectKind::gradient, 1, pieces);
  };
  EXPECT_EQ(objection({piece(0, 0, 4 * KiB)}), "");
  EXPECT_EQ(objection({piece(0, 0, MiB), piece(0, 1, MiB)}), "");
  EXPECT_EQ(objection({piece(0, 0, MiB), piece(0, 1, MiB), piece(0, 2, 4 * KiB)}),
            "it has 2101248 bytes, more than 2097152");
  EXPECT_EQ(objection({piece(0, 0, 4 * KiB), piece(0, 1, MiB)}), "piece 0 has 4096 bytes instead of 1048576")
      << "only the last piece may be short";
}

TEST_F(RecordCheckTest, ACheckpointHasOneSnapshotOfEachChunkOfItsStep) {
  EXPECT_EQ(changed_manifest([](auto& it) { it.snapshots.pop_back(); }),
            "it has snapshots of 1 chunks, the model has 2");
  EXPECT_EQ(changed_manifest([](auto& it) { it.snapshots[0].version = 7; }),
            "the snapshot of chunk 0: it is of step 7, the checkpoint of step 6");
  EXPECT_EQ(changed_manifest([](auto& it) { it.snapshots[0].version = 5; }),
            "the snapshot of chunk 0: it is of step 5, the checkpoint of step 6");
  EXPECT_EQ(changed_manifest([](auto& it) {
              it.commit.skipped = true;
              it.snapshots[0].version = 5;
            }),
            "")
      << "the step changed nothing";
}

TEST_F(RecordCheckTest, ACheckpointHasPlacesOfItsOwn) {
  EXPECT_EQ(changed_manifest([](auto& it) {
              it.snapshots[1].pieces[0].place = {0, 1};
            }),
            "two snapshots name piece 1 of path 0");
}

TEST_F(RecordCheckTest, ACommitThatTheRunCannotHaveIsObjectedTo) {
  EXPECT_EQ(changed_manifest([](auto& it) { it.commit.payload.resize(61 * KiB); }),
            "its commit is larger than one of this run can be");
}

}  // namespace
}  // namespace spillway::journal
