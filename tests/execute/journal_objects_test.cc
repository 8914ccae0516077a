// The objects of a journal follow from the model: each has the pieces that its bytes need.
#include "spillway/execute/journal_objects.h"

#include <gtest/gtest.h>

#include <set>

#include "spillway/plan/placement.h"
#include "spillway/storage/path.h"
#include "tests/plan/models.h"

namespace spillway::execute {
namespace {

using plan::Durability;
using plan::test::describe;

TEST(GradientIds, NumberDenseGradientsAndThenTheRowsOfATable) {
  for (const char* frozen : {"", "embed", "^layers\\.0"}) {
    const auto description = describe({.layers = 2, .frozen = frozen});
    const auto layout = description.layout();
    const GradientIds ids(description, layout);
    std::set<std::uint32_t> dense;
    for (plan::Index c = 0; c < layout.chunks().size(); ++c) {
      if (!plan::has_dense_grad(description, layout, c)) continue;
      EXPECT_TRUE(dense.insert(ids.find_chunk(c)).second);
    }
    EXPECT_EQ(*dense.rbegin() + 1, dense.size());
    EXPECT_EQ(ids.find_sparse(0), dense.size());
    EXPECT_EQ(ids.count(), dense.size() + (std::string(frozen) == "embed" ? 0U : 1U)) << frozen;
  }
}

TEST(JournalObjects, HavePiecesForTheirBytes) {
  const auto description = describe({.layers = 2, .frozen = "^layers\\.0"});
  const auto layout = description.layout();
  const auto spec = journal_spec(description, layout, Durability::step, "a run", 3);
  const auto sizes = object_sizes(description, layout, spec);
  ASSERT_EQ(spec.chunks.size(), layout.chunks().size());
  ASSERT_EQ(sizes.snapshots.size(), spec.chunks.size());
  ASSERT_EQ(sizes.gradients.size(), spec.gradients.size());
  const auto pieces = [](Bytes bytes) { return ceil_div(bytes, storage::kExtentAlignment); };
  for (std::size_t c = 0; c < spec.chunks.size(); ++c) {
    EXPECT_EQ(spec.chunks[c].pieces, pieces(sizes.snapshots[c][0]) + pieces(sizes.snapshots[c][1]));
    EXPECT_EQ(spec.chunks[c].constant, sizes.snapshots[c][1] == 0) << "what is frozen has no state";
  }
  for (std::size_t g = 0; g < spec.gradients.size(); ++g) {
    EXPECT_EQ(spec.gradients[g].pieces, pieces(sizes.gradients[g].bytes));
    EXPECT_EQ(sizes.gradients[g].varies, g + 1 == spec.gradients.size()) << "the rows of the table";
  }
  EXPECT_EQ(spec.gradients.back().chunks, layout.embedding()->chunks);
  EXPECT_EQ(spec.run, "a run");
  EXPECT_EQ(spec.paths, 3U);
}

TEST(JournalObjects, AreTheSameForShorterStepsAndWithoutATableThereAreNoRows) {
  const auto longer = describe({.layers = 1, .tokens = 512}), shorter = describe({.layers = 1, .tokens = 16});
  const auto of = [](const plan::Description& it) {
    return journal_spec(it, it.layout(), Durability::checkpoint, "a run", 1).gradients.size();
  };
  EXPECT_EQ(of(longer), of(shorter));
  const auto without = describe({.layers = 1, .embedding = false, .head = false, .tied = false});
  EXPECT_EQ(without.layout().embedding(), nullptr);
  EXPECT_EQ(of(without), without.layout().chunks().size());
}

}  // namespace
}  // namespace spillway::execute
