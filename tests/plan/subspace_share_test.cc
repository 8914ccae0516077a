// What learning projectors again adds to a step, by plain counting.
#include "spillway/plan/subspace_share.h"

#include <gtest/gtest.h>

#include "spillway/plan/model_sizes.h"
#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

Description model(std::uint64_t rotate, std::uint64_t micro_batches = 2) {
  return test::describe({.micro_batches = micro_batches,
                         .subspace = "up|down",
                         .nonzeros = 8,
                         .checks = {.every = 3, .threshold = 0.5, .rotate = rotate}});
}

/// Elements of layers: in all tensors, in matrices, and in those that learn in subspaces.
struct Elements {
  double all = 0, matrices = 0, inside = 0;
};

Elements elements_of(const state::Layout& layout) {
  Elements out;
  for (const auto& tensor : layout.tensors()) {
    if (layout.blocks()[tensor.block].role != state::BlockRole::layer) continue;
    const auto elements = static_cast<double>(tensor.elements);
    out.all += elements;
    if (tensor.spec.shape.size() > 1) out.matrices += elements;
    if (tensor.subspace.rank > 0) out.inside += elements;
  }
  return out;
}

TEST(SubspaceShare, FitsTakeAProductAGradientAndTheHost) {
  const auto description = model(20, 4);
  const auto layout = description.layout();
  const auto elements = elements_of(layout);
  ASSERT_GT(elements.inside, 0);
  const auto share = fit_share(description, layout);
  EXPECT_DOUBLE_EQ(share.products, elements.inside / elements.matrices / 20 / 4) << "the first of four micro-batches";
  EXPECT_DOUBLE_EQ(share.bytes, 4 * elements.inside / elements.all / 20);
  EXPECT_DOUBLE_EQ(share.memory, 3 * share.bytes);
  EXPECT_DOUBLE_EQ(share.traffic, 26 * 8 * kFitWork * elements.inside / elements.all / 20);
}

TEST(SubspaceShare, FitsAreForgottenWhereNothingIsLearnedOnASchedule) {
  for (const auto& description : {model(0), in_full(model(20))}) {
    const auto layout = description.layout();
    const auto share = fit_share(description, layout);
    EXPECT_EQ(0, share.products + share.bytes + share.traffic);
    EXPECT_EQ(1, products_with_fits(description, layout));
  }
}

TEST(SubspaceShare, BackwardIsLongerByTheirProducts) {
  const auto description = model(5, 1);
  const auto layout = description.layout();
  const auto elements = elements_of(layout);
  const auto without = 2 * elements.matrices + gradient_products(layout) * elements.matrices;
  EXPECT_DOUBLE_EQ(products_with_fits(description, layout), 1 + elements.inside / 5 / without);
  const auto sizes = sizes_of(description, layout), never = sizes_of(model(0, 1), layout);
  EXPECT_DOUBLE_EQ(sizes.gradient_products - never.gradient_products, elements.inside / 5 / elements.matrices);
  EXPECT_EQ(never.fits.traffic, 0);
  EXPECT_GT(sizes.fits.traffic, 0);
}

}  // namespace
}  // namespace spillway::plan
