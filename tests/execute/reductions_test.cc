// Each reduction has a sink and an update of its own.
#include "spillway/execute/reductions.h"

#include <gtest/gtest.h>

#include "tests/plan/models.h"

namespace spillway::execute {
namespace {

TEST(Reductions, AreAllInTheDescriptionsThatNameThem) {
  for (const auto* reduction : optim::reductions()) {
    EXPECT_NE(*reduction->name, 0);
    EXPECT_NE(*reduction->word, 0);
    EXPECT_NE(*reduction->auxiliary, 0);
  }
}

TEST(Reductions, MakeASinkAndAnUpdateForTheMatricesThatHaveThem) {
  const auto description =
      plan::test::describe({.layers = 1, .embedding = false, .head = false, .tied = false, .subspace = "up"});
  const auto layout = description.layout();
  ASSERT_NE(layout.reduction(), nullptr);
  const auto sink = make_sink(description, layout);
  const auto update = make_reduced_update(layout, description.rule());
  std::size_t reduced = 0;
  for (const auto& chunk : layout.chunks()) {
    const auto tensor = layout.spans(chunk.id).front().tensor;
    if (!chunk.reduced.any()) {
      EXPECT_THROW(static_cast<void>(sink->refit_count(tensor)), Error);
      continue;
    }
    ++reduced;
    EXPECT_FALSE(sink->ready(tensor)) << "nothing was refitted";
    EXPECT_TRUE(sink->wants_whole(tensor, 0));
    for (std::size_t part = 0; part < update->parts(); ++part) EXPECT_GT(update->tiles(chunk, part), 0U);
  }
  EXPECT_EQ(reduced, 1U);
}

}  // namespace
}  // namespace spillway::execute
