#include "spillway/journal/event_checks.h"

#include <gtest/gtest.h>

#include "spillway/base/error.h"
#include "tests/journal/journal_parts.h"

namespace spillway::journal {
namespace {

template <class Check>
std::string refusal_of(const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(EventChecks, PiecesAreOfAnAnnouncedObjectOnAPathThatExists) {
  const testing::JournalParts parts;
  const auto check = [&](ObjectKind kind, std::uint32_t object, const std::vector<Piece>& pieces) {
    return refusal_of([&] { check_pieces(parts.spec, parts.layout, kind, object, pieces); });
  };
  EXPECT_EQ(check(ObjectKind::snapshot, 1, testing::JournalParts::at(0)), "");
  EXPECT_NE(check(ObjectKind::snapshot, 2, testing::JournalParts::at(0)).find("chunk 2 was written; 2 were announced"),
            std::string::npos);
  EXPECT_NE(check(ObjectKind::gradient, 9, testing::JournalParts::at(0)).find("gradient 9 was written"),
            std::string::npos);
  EXPECT_NE(check(ObjectKind::snapshot, 0, {}).find("an object of 0 pieces"), std::string::npos);
  EXPECT_NE(check(ObjectKind::snapshot, 0, {{{7, 0}, 4096, 0, 0}}).find("a piece on path 7; there are 2"),
            std::string::npos);
}

TEST(EventChecks, SnapshotsOfAChunkComeInTheirOrder) {
  testing::JournalParts parts;
  Catalog::Chunk known;
  EXPECT_EQ(refusal_of([&] { check_snapshot_order(known, 0, 0); }), "");
  known.trusted = parts.catalog.make(4, 1, {});
  EXPECT_EQ(refusal_of([&] { check_snapshot_order(known, 0, 5); }), "");
  EXPECT_NE(refusal_of([&] { check_snapshot_order(known, 0, 4); }), "");
  known.written = {parts.catalog.make(6, 1, {})};
  EXPECT_NE(refusal_of([&] { check_snapshot_order(known, 0, 5); }).find("of step 6"), std::string::npos);
}

TEST(EventChecks, GradientsComeInTheirOrderAndNotFarAhead) {
  testing::JournalParts parts;
  Catalog::Gradient known;
  const auto check = [&](std::uint64_t version, std::uint32_t generation) {
    return refusal_of([&] { check_gradient_order(parts.spec, known, 0, version, generation, 10); });
  };
  EXPECT_EQ(check(10 + kMostStepsAhead, 1), "");
  EXPECT_NE(check(11 + kMostStepsAhead, 1).find("while only step 10 is durable"), std::string::npos);
  known.held = {parts.catalog.make(11, 1, {})};
  EXPECT_NE(check(11, 1).find("after that of step 11"), std::string::npos);
  EXPECT_EQ(check(11, 2), "");  // another generation goes on from an earlier step
  parts.spec.durability = Durability::checkpoint;
  EXPECT_NE(check(12, 1).find("have no records"), std::string::npos);
}

TEST(EventChecks, ACommitComesAfterTheLastOne) {
  const testing::JournalParts parts;
  const auto check = [&](const CommitRequest& request, std::optional<std::uint64_t> last) {
    return refusal_of([&] { check_request(parts.spec, request, last); });
  };
  EXPECT_EQ(check({.step = 0}, std::nullopt), "");
  EXPECT_EQ(check({.step = 3, .previous = 2}, 2), "");
  EXPECT_NE(check({.step = 2}, 2).find("step 2 is committed after step 2"), std::string::npos);
  EXPECT_NE(check({.step = 3, .previous = 3}, 2), "");
  const std::vector<std::byte> large(parts.spec.payload + 1);
  EXPECT_NE(check({.step = 3, .payload = large}, 2).find("a commit carries"), std::string::npos);
  const std::uint32_t unknown = 2;
  EXPECT_NE(check({.step = 3, .gradients = {&unknown, 1}}, 2).find("used gradient 2; 2 were announced"),
            std::string::npos);
}

TEST(EventChecks, ACheckpointIsOfThisRunAndItsPlacesArePinned) {
  testing::JournalParts parts;
  Manifest manifest{.identity = parts.layout.identity(), .commit = {}, .snapshots = {}};
  EXPECT_NE(refusal_of([&] { check_manifest(parts.layout, manifest); }), "");
  manifest.snapshots = {{0, 3, testing::JournalParts::at(0)}, {1, 3, testing::JournalParts::at(1)}};
  EXPECT_EQ(refusal_of([&] { check_manifest(parts.layout, manifest); }), "");
  EXPECT_NE(refusal_of([&] { check_unpinned(parts.catalog, manifest); }).find("chunk 0 of step 3"), std::string::npos);
  parts.catalog.pin(manifest);
  EXPECT_EQ(refusal_of([&] { check_unpinned(parts.catalog, manifest); }), "");
  ++manifest.identity;
  EXPECT_NE(refusal_of([&] { check_manifest(parts.layout, manifest); }), "");
}

}  // namespace
}  // namespace spillway::journal
