// What may be handed over in which pass.
#include "spillway/execute/pass_gradients.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using plan::PassKind;
using test::Planned;
using test::whole_step;

const std::byte* zeros() {
  static const std::vector<std::byte> bytes(1 * MiB);
  return bytes.data();
}

TEST(PassGradients, AreRefusedOutsideTheirPass) {
  const Planned planned;
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  test::fill(run, planned);
  auto& gradients = run.step().gradients();
  EXPECT_ERROR(gradients.layer(0, zeros(), 0), ErrorCode::bad_input, "gradient() outside its pass");
  run.step().begin(whole_step(planned));
  while (const auto pass = run.step().next_pass()) {
    EXPECT_ERROR(gradients.head(zeros(), 0), ErrorCode::bad_input, "head_gradient() outside its pass");
    EXPECT_ERROR(gradients.embedding(zeros()), ErrorCode::bad_input, "embedding_backward() outside its pass");
    if (pass->kind == PassKind::forward) {
      EXPECT_ERROR(gradients.layer(0, zeros(), 0), ErrorCode::bad_input, "gradient() outside its pass");
      EXPECT_ERROR(static_cast<void>(gradients.lend_sum(0, 0)), ErrorCode::bad_input, "lend_sum() outside its pass");
      EXPECT_ERROR(gradients.end_sum(0, 0), ErrorCode::bad_input, "end_sum() outside its pass");
    }
    run.step().end_pass();
  }
  EXPECT_EQ(run.step().norm().sum, 0) << "what got none is zero";
}

TEST(PassGradients, AreRefusedOfWhatIsFrozen) {
  auto shape = test::layers();
  shape.frozen = "^layers\\.1\\.down";
  const Planned planned({.shape = shape});
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  test::fill(run, planned);
  run.step().begin(whole_step(planned));
  while (const auto pass = run.step().next_pass()) {
    if (pass->kind == PassKind::backward && pass->block == 1) {
      const auto first = planned.layout.blocks()[1].first_tensor;
      for (auto t = first; t < first + planned.layout.blocks()[1].tensors; ++t) {
        if (is_trainable(planned.layout.tensors()[t].spec.training)) {
          EXPECT_NO_THROW(run.step().gradients().layer(t, zeros(), 0));
        } else {
          EXPECT_ERROR(run.step().gradients().layer(t, zeros(), 0), ErrorCode::bad_input, "which is frozen");
          EXPECT_ERROR(static_cast<void>(run.step().gradients().lend_sum(t, 0)), ErrorCode::bad_input,
                       "which is frozen");
        }
      }
    }
    run.step().end_pass();
  }
}

TEST(PassGradients, OfSubspacesBelongToTheirBlock) {
  auto shape = test::layers();
  shape.subspace = "up";
  const Planned planned({.shape = shape});
  execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
  test::fill(run, planned);
  run.step().begin(whole_step(planned));
  auto& gradients = run.step().gradients();
  while (const auto pass = run.step().next_pass()) {
    if (pass->kind == PassKind::backward && planned.layout.blocks()[pass->block].tensors == 3) {
      const auto& block = planned.layout.blocks()[pass->block];
      for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
        const auto& subspace = planned.layout.tensors()[t].reduced;
        if (!subspace.any()) continue;
        EXPECT_ERROR(static_cast<void>(gradients.lend_sum(t, 0)), ErrorCode::bad_input, "the gradient is reduced");
        EXPECT_TRUE(gradients.wants_whole_gradient(t, 0)) << "the first are fitted in the first step";
        EXPECT_ERROR(gradients.whole_gradient(t, std::vector<float>(3)), ErrorCode::bad_input, "");
        EXPECT_ERROR(gradients.sample(t, std::vector<float>(3), 0), ErrorCode::bad_input, "a sample of 3 rows");
        std::vector<float> signs(subspace.columns);
        gradients.signs(t, signs);
        for (const auto sign : signs) EXPECT_EQ(std::abs(sign), 1);
      }
      const auto other = block.first_tensor == 0 ? block.tensors : 0;
      EXPECT_ERROR(static_cast<void>(gradients.wants_whole_gradient(other, 0)), ErrorCode::bad_input,
                   "outside its block's pass");
    }
    run.step().end_pass();
  }
}

}  // namespace
}  // namespace spillway::execute
