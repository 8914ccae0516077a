// Block passes in the order of the schedule, with what each is given.
#include "spillway/execute/passes.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using plan::PassKind;
using test::Planned;
using test::whole_step;

TEST(Passes, GoForwardAndBackThroughTheBlocks) {
  const Planned planned;
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  test::fill(run, planned);
  const auto memory = run.resources().host();
  const auto inside = [&](const void* at) { return at >= memory.data() && at < memory.data() + memory.size(); };
  run.step().begin(whole_step(planned));
  std::vector<std::pair<PassKind, std::size_t>> found, expected;
  while (const auto pass = run.step().next_pass()) {
    found.emplace_back(pass->kind, pass->block);
    EXPECT_TRUE(inside(pass->weights) && inside(pass->input));
    const bool backward = pass->kind == PassKind::backward;
    EXPECT_EQ(pass->hidden_gradient != nullptr, backward);
    EXPECT_EQ(pass->output != nullptr, !backward || found.size() == planned.layout.blocks().size() + 1);
    if (backward) test::give_gradients(run.step(), planned, *pass);
    run.step().end_pass();
  }
  const auto blocks = planned.layout.blocks().size();
  for (std::size_t b = 0; b < blocks; ++b) expected.emplace_back(PassKind::forward, b);
  for (std::size_t b = blocks; b-- > 0;) expected.emplace_back(PassKind::backward, b);
  EXPECT_EQ(found, expected);
}

TEST(Passes, HaveTheWeightsThatWereStored) {
  const Planned planned;
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  test::fill(run, planned);
  run.step().begin(whole_step(planned, false));
  while (const auto pass = run.step().next_pass()) {
    const auto& block = planned.layout.blocks()[pass->block];
    const auto& tensor = planned.layout.tensors()[block.first_tensor];
    const auto* weights = reinterpret_cast<const std::uint16_t*>(pass->weights) + tensor.first;
    for (std::size_t i = 0; i < tensor.elements; ++i) {
      const auto value = std::bit_cast<float>(std::uint32_t{weights[i]} << 16);
      ASSERT_NEAR(value, static_cast<float>((block.first_tensor * 31 + i) % 17) * 0.01F - 0.05F, 1e-3);
    }
    run.step().end_pass();
  }
}

TEST(Passes, OfATableAreSlices) {
  const Planned planned({.shape = {.layers = 1, .tokens = 16, .micro_batches = 1}});
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  test::fill(run, planned);
  const std::vector<std::int64_t> ids(16, 3);
  auto begin = whole_step(planned, false);
  begin.ids = ids;
  run.step().begin(begin);
  run.step().embedding_forward(nullptr);
  std::uint64_t rows = 0;
  while (const auto pass = run.step().next_pass()) {
    if (pass->kind == PassKind::forward && pass->block == 1) {
      const auto hidden = planned.description.hidden_size;
      const auto* input = reinterpret_cast<const std::uint16_t*>(pass->input);
      EXPECT_TRUE(std::equal(input, input + hidden, input + hidden)) << "the same token has the same row";
    }
    if (pass->kind == PassKind::head_loss) {
      EXPECT_EQ(pass->first_row, rows);
      rows += pass->rows;
    }
    run.step().end_pass();
  }
  EXPECT_EQ(rows, planned.layout.blocks().front().rows);
}

TEST(Passes, HaveNoEmbeddingWhereTheModelHasNone) {
  const Planned planned;
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  test::fill(run, planned);
  run.step().begin(whole_step(planned));
  EXPECT_ERROR(run.step().embedding_forward(nullptr), ErrorCode::bad_input, "has no embedding block");
}

}  // namespace
}  // namespace spillway::execute
