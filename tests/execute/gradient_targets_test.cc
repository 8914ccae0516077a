#include "spillway/execute/gradient_targets.h"

#include <gtest/gtest.h>

#include <vector>

#include "spillway/plan/arena_layout.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::execute {
namespace {

/// A step of layers alone, in bf16.
struct Layers {
  explicit Layers(std::uint64_t micro_batches)
      : description(plan::test::describe(
            {.layers = 2, .embedding = false, .head = false, .tied = false, .micro_batches = micro_batches})),
        layout(description.blocks, description.chunk_elements),
        schedule(plan::make_schedule(description, layout, plan::test::placement_of(layout), {})),
        arena(lay_out(schedule)),
        targets(schedule, layout, description, arena.data()) {}

  /// Calls body(pass, tensor) for the tensors of each backward pass.
  template <class Body>
  void each_tensor(const Body& body) const {
    for (const auto& pass : schedule.passes) {
      if (pass.kind != plan::PassKind::backward) continue;
      const auto& block = layout.blocks()[pass.block];
      for (std::size_t t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) body(pass, t);
    }
  }
  [[nodiscard]] const std::byte* begin_of(const plan::Pass& pass, plan::Operand operand) const {
    return arena.data() + schedule.buffers[pass[operand]].offset;
  }

  const plan::Description description;
  const state::Layout layout;
  plan::Schedule schedule;
  std::vector<std::byte> arena;
  GradientTargets targets;
};

TEST(GradientTargets, LieInTheBufferOfTheirPassOneBehindTheOther) {
  Layers layers(1);
  layers.targets.begin(false);
  const plan::Pass* before = nullptr;
  Bytes end = 0;
  layers.each_tensor([&](const plan::Pass& pass, std::size_t tensor) {
    if (&pass != before) end = 0;
    before = &pass;
    const auto target = layers.targets.find_target(pass, tensor);
    EXPECT_EQ(target.elements, layers.layout.tensors()[tensor].elements);
    const auto at = static_cast<Bytes>(target.grad - layers.begin_of(pass, plan::Operand::gradient));
    EXPECT_GE(at, end);
    end = at + target.elements * state::field_bytes(target.type).grad;
    EXPECT_LE(end, layers.schedule.buffers[pass[plan::Operand::gradient]].bytes);
    EXPECT_EQ(target.sum, nullptr);
  });
  EXPECT_NE(before, nullptr);
}

TEST(GradientTargets, HaveSumsInAStepThatAddsMicroBatches) {
  Layers layers(3);
  for (const bool summed : {true, false}) {
    layers.targets.begin(summed);
    layers.each_tensor([&](const plan::Pass& pass, std::size_t tensor) {
      const auto target = layers.targets.find_target(pass, tensor);
      ASSERT_EQ(target.sum != nullptr, summed);
      if (!summed) return;
      const auto at =
          reinterpret_cast<const std::byte*>(target.sum) - layers.begin_of(pass, plan::Operand::gradient_sums);
      EXPECT_GE(at, 0);
      EXPECT_LE(static_cast<Bytes>(at) + target.elements * sizeof(float),
                layers.schedule.buffers[pass[plan::Operand::gradient_sums]].bytes);
    });
  }
}

TEST(GradientTarget, RoundsSumsAndCopiesValuesOfItsType) {
  std::vector<float> sums(4);
  const std::vector<std::byte> values(16);
  GradientTarget target{.sum = sums.data()};
  EXPECT_EQ(target.unrounded(nullptr), sums.data());
  EXPECT_EQ(target.unrounded(values.data()), nullptr);
  target.given = state::ComputeType::fp32;
  EXPECT_EQ(target.unrounded(values.data()), reinterpret_cast<const float*>(values.data()));
  target.type = state::ComputeType::fp32;
  EXPECT_EQ(target.unrounded(nullptr), nullptr);  // added up in place
}

}  // namespace
}  // namespace spillway::execute
