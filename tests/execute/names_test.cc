// What a damaged range is called: by the arrays and tensors that it is a part of.
#include "spillway/execute/names.h"

#include <gtest/gtest.h>

#include "tests/plan/models.h"

namespace spillway::execute {
namespace {

using journal::kStatePart;
using journal::kWeightPart;
using journal::ObjectKind;

class Names : public ::testing::Test {
 protected:
  /// The gradient of the chunk, by the journal's number.
  [[nodiscard]] std::uint32_t gradient() const { return GradientIds(description, layout).find_chunk(chunk); }

  const plan::Description description = plan::test::describe({.layers = 2, .chunk_elements = 1 << 14});
  const state::Layout layout = description.layout();
  const ObjectNames names{description, layout};
  const std::size_t chunk = layout.blocks()[1].first_chunk;  // of layers.0: up and down, and the norm
  const std::string where = text(" (chunk ", chunk, ")");
};

TEST_F(Names, OfAChunkAreItsFirstTensorAndItsLast) {
  EXPECT_EQ(names.describe(ObjectKind::snapshot, static_cast<std::uint32_t>(chunk)),
            "layers.0.up to layers.0.norm" + where);
  EXPECT_EQ(names.describe(ObjectKind::gradient, gradient()), "layers.0.up to layers.0.norm" + where);
}

TEST_F(Names, OfARangeAreThoseInIt) {
  const auto object = static_cast<std::uint32_t>(chunk);
  EXPECT_EQ(names.describe(ObjectKind::snapshot, object, kWeightPart, 0, 4096), "weight of layers.0.up" + where);
  EXPECT_EQ(names.describe(ObjectKind::snapshot, object, kWeightPart, 2 * 96 * 64, 2),
            "weight of layers.0.down" + where);
  const auto state = layout.chunks()[chunk];
  const auto fields = state_fields(description.rule(), state);
  EXPECT_EQ(names.describe(ObjectKind::snapshot, object, kStatePart, fields.moments[0], 4),
            "exp_avg of layers.0.up" + where);
  EXPECT_EQ(names.describe(ObjectKind::snapshot, object, kStatePart, fields.moments[1] - 4, 8),
            "exp_avg of padding of layer, exp_avg_sq of layers.0.up" + where);
  EXPECT_EQ(names.describe(ObjectKind::gradient, gradient(), 0, 2 * 96 * 64, 2), "gradient of layers.0.down" + where);
}

TEST_F(Names, BehindDenseGradientsAreTheRowsOfATable) {
  const GradientIds ids(description, layout);
  EXPECT_EQ(names.describe(ObjectKind::gradient, ids.find_sparse(0)), "the embedding's rows, part 0");
  EXPECT_EQ(names.describe(ObjectKind::gradient, ids.find_sparse(2), 0, 0, 8),
            "gradient of the embedding's rows, part 2");
}

}  // namespace
}  // namespace spillway::execute
