// What projectors miss, as a running mean in the record of a matrix.
#include "spillway/subspace/estimates.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "spillway/plan/device_workspace.h"
#include "spillway/subspace/bias.h"
#include "tests/plan/models.h"

namespace spillway::subspace {
namespace {

class EstimatesTest : public ::testing::Test {
 protected:
  EstimatesTest()
      : description(
            plan::test::describe({.layers = 1, .hidden = 64, .embedding = false, .tied = false, .subspace = "up"})),
        layout(description.layout()),
        subspaces(description, layout),
        cpu(device::make_cpu()),
        estimates(layout, subspaces, {*cpu, 0, nullptr, plan::device_workspace(layout, false, description.tokens)}) {
    while (!layout.tensors()[matrix].reduced.any()) ++matrix;
  }

  /// A step with these values of G z by micro-batch, each in every row, and tiles' sums of |S|².
  optim::RefitRecord step(const std::vector<float>& seen, const std::vector<double>& squares) {
    subspaces.begin(steps++, scale);
    estimates.begin();
    estimates.open(layout.blocks().front());
    const auto rows = layout.tensors()[matrix].reduced.rows;
    std::vector<float> sum(seen.empty() ? 0 : rows);
    for (const auto value : seen) {
      for (auto& row : sum) row += value;
    }
    optim::RefitRecord out;
    estimates.close(matrix, squares, sum, reinterpret_cast<std::byte*>(&out));
    estimates.fetch();
    estimates.tell();
    EXPECT_EQ(subspaces.record(matrix), out);
    subspaces.end(true);
    return out;
  }

  const plan::Description description;
  const state::Layout layout;
  Subspaces subspaces;
  const std::unique_ptr<device::Device> cpu;
  Estimates estimates;
  std::size_t matrix = 0;
  std::int64_t steps = 0;
  double scale = 1;
};

TEST_F(EstimatesTest, AreMeansOverSteps) {
  const auto rows = static_cast<double>(layout.tensors()[matrix].reduced.rows);
  scale = 2;  // gradients come doubled, and their squares four times as large
  const auto first = step({1, 3}, {40, 60});
  EXPECT_EQ(first.samples, 1);
  EXPECT_EQ(first.captured, 25);
  EXPECT_EQ(first.whole, 16 * rows / 4) << "micro-batches are added before they are squared";
  const auto second = step({4}, {60, 80});
  EXPECT_EQ(second.samples, 2);
  subspace::Bias expected;
  expected.add(25, 4 * rows);
  expected.add(35, 4 * rows);
  EXPECT_EQ(second.captured, expected.captured);
  EXPECT_EQ(second.whole, expected.whole);
}

TEST_F(EstimatesTest, AreLeftAloneByWhatGivesNoSample) {
  const auto before = step({1}, {4});
  EXPECT_EQ(step({}, {9}), before) << "no micro-batch was seen";
  EXPECT_EQ(step({std::numeric_limits<float>::infinity()}, {9}), before);
}

}  // namespace
}  // namespace spillway::subspace
