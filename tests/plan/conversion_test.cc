// Which passes multiply by a copy of their weights, how large it is, and where tensors lie in it.
#include "spillway/plan/conversion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::plan {
namespace {

struct Converted {
  explicit Converted(const test::Shape& shape)
      : description(test::describe(shape)),
        layout(description.layout()),
        schedule(make_schedule(description, layout, test::placement_of(layout), {})) {}

  [[nodiscard]] Bytes copy() const {
    return schedule.shared(Operand::converted) == kNone ? 0
                                                        : schedule.buffers[schedule.shared(Operand::converted)].bytes;
  }

  const Description description;
  const state::Layout layout;
  const Schedule schedule;
};

TEST(Conversion, ThereIsNoneWhereLayersMultiplyByWhatIsKept) {
  const Converted it({});
  for (const auto& pass : it.schedule.passes) EXPECT_FALSE(converts(it.description, it.layout, pass));
  EXPECT_EQ(it.schedule.shared(Operand::converted), kNone);
  for (std::size_t t = 0; t < it.layout.tensors().size(); ++t) {
    EXPECT_EQ(weight_first(it.description, it.layout, t), it.layout.tensors()[t].first);
  }
}

TEST(Conversion, IsOfAllPassesWithWeightsWhereTheyMultiplyInAnotherType) {
  const Converted it({.compute = state::ComputeType::fp32});
  Bytes most = 0;
  for (const auto& pass : it.schedule.passes) {
    const bool rows = pass.kind == PassKind::embedding || pass.kind == PassKind::embedding_backward;
    EXPECT_EQ(converts(it.description, it.layout, pass), !rows);
    most = std::max(most, converted_bytes(it.description, it.layout, pass));
  }
  EXPECT_EQ(it.copy(), round_up(most, 4096));
}

TEST(Conversion, IsOfBlocksWithPackedWeightsAloneAndKeepsWhatIsFp32) {
  const Converted it({.layers = 3, .frozen = "layers\\.[02]\\.(up|down)", .fp32 = "norm", .packed = "up"});
  std::size_t converted = 0;
  for (const auto& pass : it.schedule.passes) {
    const auto& block = it.layout.blocks()[pass.block];
    const bool packed = block.role == state::BlockRole::layer && block.packed;
    EXPECT_EQ(converts(it.description, it.layout, pass), packed);
    if (!packed) continue;
    ++converted;
    Bytes bytes = 0;
    for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
      const auto& chunk = it.layout.chunks()[c];
      bytes += chunk.values() * (chunk.form == state::Form::fp32 ? 4 : 2);
    }
    EXPECT_EQ(converted_bytes(it.description, it.layout, pass), bytes);
    EXPECT_GE(it.copy(), bytes);
  }
  EXPECT_GE(converted, 3U);
}

/// No two tensors share a place, and each lies where none of 16 bits is misaligned.
TEST(Conversion, TensorsLieOneAfterTheOtherInTheCopy) {
  const Converted it({.layers = 1, .chunk_elements = 4096, .frozen = "up|down", .packed = "down"});
  const auto& block = it.layout.blocks()[1];
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
  for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
    const auto first = weight_first(it.description, it.layout, t);
    EXPECT_EQ(first % state::kTensorAlignment, 0U);
    taken.emplace_back(first, first + it.layout.tensors()[t].elements);
  }
  std::ranges::sort(taken);
  for (std::size_t i = 1; i < taken.size(); ++i) EXPECT_GE(taken[i].first, taken[i - 1].second);
}

}  // namespace
}  // namespace spillway::plan
