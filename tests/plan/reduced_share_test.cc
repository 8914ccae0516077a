// What refitting projectors adds to a step, by plain counting.
#include "spillway/plan/reduced_share.h"

#include <gtest/gtest.h>

#include "spillway/plan/auxiliary_memory.h"
#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

Description model(std::uint64_t rotate, std::uint64_t micro_batches = 2, bool published = false) {
  return test::describe({.micro_batches = micro_batches,
                         .subspace = "up|down",
                         .nonzeros = 8,
                         .published = published,
                         .checks = {.check_every = 3, .threshold = 0.5, .rotate_every = rotate}});
}

/// Elements of layers: in matrices, in those that are trained in subspaces, and in gradients of matrices.
struct Elements {
  double matrices = 0, inside = 0, gradients = 0;
};

Elements elements_of(const state::Layout& layout) {
  Elements out;
  for (const auto& tensor : layout.tensors()) {
    if (layout.blocks()[tensor.block].role != state::BlockRole::layer) continue;
    const auto elements = static_cast<double>(tensor.elements);
    if (tensor.spec.shape.size() < 2) continue;
    out.matrices += elements;
    out.gradients += static_cast<double>(tensor.gradient_elements());
    if (tensor.reduced.any()) out.inside += elements;
  }
  return out;
}

TEST(ReducedShare, RefitsAreForgottenWhereThereIsNoScheduleOfThem) {
  for (const auto& description : {model(0), in_full(model(20))}) {
    const auto layout = description.layout();
    EXPECT_EQ(1, products_with_refits(description, layout));
  }
}

TEST(ReducedShare, BackwardIsLongerByTheirProducts) {
  for (const std::uint64_t micro_batches : {1U, 4U}) {
    const auto description = model(5, micro_batches);
    const auto layout = description.layout();
    const auto elements = elements_of(layout);
    ASSERT_GT(elements.inside, 0);
    const auto without = 2 * elements.matrices + elements.gradients;
    const auto learned = elements.inside / 5 / static_cast<double>(micro_batches);  // the first of them
    EXPECT_DOUBLE_EQ(products_with_refits(description, layout), 1 + learned / without);
  }
}

TEST(ReducedShare, PublishedProjectorsFormAWholeGradientAtEachLookAndAreLearnedFromIt) {
  const auto published = model(0, 2, true), fitted = model(3);
  const auto layout = published.layout(), other = fitted.layout();
  EXPECT_DOUBLE_EQ(products_with_refits(published, layout), products_with_refits(fitted, other));
  for (std::size_t c = 0; c < layout.chunks().size(); ++c) {
    if (!layout.chunks()[c].reduced.any()) continue;
    EXPECT_GT(refit_elements(published.refits, layout.chunks()[c]),
              100 * refit_elements(fitted.refits, other.chunks()[c]));
  }
}

TEST(ReducedShare, PublishedProjectorsTakeMoreMemory) {
  const auto published = model(0, 2, true).layout(), fitted = model(0).layout();
  Bytes kept = 0;
  for (const auto& tensor : fitted.tensors()) kept += 2 * tensor.reduced.refitted_bytes();
  EXPECT_GT(auxiliary_bytes(published, 1), auxiliary_bytes(fitted, 1) + kept);
}

}  // namespace
}  // namespace spillway::plan
