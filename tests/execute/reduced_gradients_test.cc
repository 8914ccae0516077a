// Samples of reduced gradients are added as the gradients themselves are: by virtual rank, and then as a tree.
#include "spillway/execute/reduced_gradients.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "spillway/execute/reductions.h"
#include "spillway/optim/lsp.h"
#include "tests/plan/models.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

class ReducedGradientsTest : public ::testing::Test {
 protected:
  explicit ReducedGradientsTest(std::uint64_t virtual_ranks = 2)
      : description(plan::test::describe({.layers = 1,
                                          .embedding = false,
                                          .head = false,
                                          .micro_batches = 4,
                                          .subspace = "up",
                                          .virtual_ranks = virtual_ranks})),
        where{.device = *cpu, .sizes = plan::device_workspace(layout, false, description.tokens)},
        sink(make_sink(description, layout)),
        reduced(description, layout, *sink, where) {
    sink->use(where, {});
    while (!layout.tensors()[tensor].reduced.any()) ++tensor;
  }
  void begin() {
    const plan::VirtualRanks ranks(description.virtual_ranks, 4);
    sink->begin(1, 1, ranks.position_of(1));
    sink->open(layout.blocks().front());
    reduced.begin(ranks);
    reduced.open(layout.blocks().front());
  }

  const plan::Description description;
  const state::Layout layout = description.layout();
  const std::unique_ptr<device::Device> cpu = device::make_cpu();
  const sink::Arithmetic where;
  const std::unique_ptr<sink::GradientSink> sink;
  ReducedGradients reduced;
  std::size_t tensor = 0;
};

TEST_F(ReducedGradientsTest, AddSamplesAsATreeOfVirtualRanks) {
  begin();
  const auto rows = layout.tensors()[tensor].reduced.rows;
  const std::vector<float> given{0x1p24F, 1, 1, -0x1p24F};  // in order they would be 0
  for (std::uint64_t m = 0; m < given.size(); ++m) reduced.take(tensor, std::vector<float>(rows, given[m]), m);
  reduced.finish(tensor);
  const auto place = reduced.sums(tensor);
  EXPECT_EQ(std::vector<float>(place.lowest, place.lowest + place.elements), std::vector<float>(rows, 1));
  std::vector<double> squares{3};
  optim::RefitRecord record;
  reduced.close(tensor, true, squares, reinterpret_cast<std::byte*>(&record));
  EXPECT_EQ(record.whole, static_cast<double>(rows));
  EXPECT_EQ(record.captured, 3);
}

TEST_F(ReducedGradientsTest, WithoutAMicroBatchAreZero) {
  begin();
  reduced.finish(tensor);
  std::vector<double> squares{7};
  optim::RefitRecord record;
  reduced.close(tensor, false, squares, reinterpret_cast<std::byte*>(&record));
  EXPECT_EQ(squares.front(), 0);
  EXPECT_EQ(record.samples, 1) << "as it would be of several processes, none of which had one";
  EXPECT_EQ(record.whole, 0);
}

class OfOneRank : public ReducedGradientsTest {
 protected:
  OfOneRank() : ReducedGradientsTest(1) {}
};

TEST_F(OfOneRank, GradientsThatCameBeforeTheirProjectorsAreNotANumber) {
  begin();
  reduced.finish(tensor);
  std::vector<double> squares{7};
  optim::RefitRecord record;
  reduced.close(tensor, true, squares, reinterpret_cast<std::byte*>(&record));
  EXPECT_NE(squares.front(), squares.front());
  EXPECT_EQ(record.samples, 0);
}

TEST_F(ReducedGradientsTest, OfOtherTensorsAndRowsAreRefused) {
  begin();
  EXPECT_ERROR(reduced.take(tensor, std::vector<float>(3), 0), ErrorCode::bad_input, "a sample of 3 rows");
  EXPECT_ERROR(reduced.take(tensor + 1, std::vector<float>(3), 0), ErrorCode::bad_input, "of which 0 are taken");
}

}  // namespace
}  // namespace spillway::execute
