#include "spillway/plan/planner.h"

#include <gtest/gtest.h>

#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

Plan plan_in_dram(const test::Shape& shape, const state::Layout& layout) {
  Budget budget;
  budget.dram = 1 << 30;
  return make_plan(test::describe(shape), layout, budget, {});
}

TEST(Planner, AboveWhatIsResidentThereIsRoomForTheLargestChunk) {
  for (const std::uint64_t chunk_elements : {2048U, 8192U, 1U << 22U}) {
    for (const std::uint64_t tokens : {1U, 8U, 128U}) {
      const test::Shape shape{.layers = 2, .hidden = 16, .ffn = 32, .tokens = tokens, .chunk_elements = chunk_elements};
      const auto description = test::describe(shape);
      const state::Layout layout(description.blocks, description.chunk_elements);
      const auto plan = plan_in_dram(shape, layout);
      const auto bytes = state::field_bytes(description.type);
      EXPECT_GE(plan.arena, plan.resident + layout.largest_chunk() * (bytes.weight + bytes.state))
          << chunk_elements << " elements a chunk, " << tokens << " tokens";
    }
  }
}

}  // namespace
}  // namespace spillway::plan
