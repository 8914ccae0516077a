// Counts of the experts that steps meet.
#include "spillway/execute/asked_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "tests/plan/models.h"

namespace spillway::execute {
namespace {

/// Two layers, each with a matrix of twenty experts whose places are apart.
state::Layout make_layout() {
  return plan::test::describe({.layers = 2, .experts = 20, .asked = 0.5}).layout();
}

std::size_t find_experts(const state::Layout& layout, std::size_t layer) {
  const auto& block = layout.blocks()[layout.layers()[layer]];
  for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
    if (layout.tensors()[t].spec.apart) return t;
  }
  throw std::logic_error("the layer has no experts");
}

std::size_t chunk_of(const state::Layout& layout, std::size_t tensor, std::uint64_t piece) {
  const auto is_of = [&](const state::Chunk& chunk) {
    const auto& spans = layout.spans(chunk.id);
    return !spans.empty() && spans.front().tensor == tensor &&
           spans.front().tensor_first == piece * layout.tensors()[tensor].piece();
  };
  return std::ranges::find_if(layout.chunks(), is_of)->id;
}

TEST(AskedPieces, CountsEachPieceOnceAStep) {
  const auto layout = make_layout();
  const plan::Placement placement(layout);
  const WeightSlots slots(layout.chunks().size());
  AskedPieces pieces(layout, placement, slots);
  ASSERT_EQ(pieces.counts().size(), 2U);
  EXPECT_EQ(pieces.counts()[0].block, layout.blocks()[layout.layers()[0]].name);
  const auto first = find_experts(layout, 0), second = find_experts(layout, 1);
  for (int step = 0; step < 2; ++step) {
    pieces.begin_step(true);
    pieces.add(first, 3, 4);
    pieces.add(first, 5, 3);  // 7 is new
    pieces.add(first, 19, 1);
    pieces.add(second, 0, 20);
  }
  EXPECT_EQ(pieces.counts()[0].asked, 2 * 6U);
  EXPECT_EQ(pieces.counts()[0].pieces, 2 * 20U);
  EXPECT_EQ(pieces.counts()[1].asked, 2 * 20U);
  EXPECT_EQ(pieces.counts()[1].pieces, 2 * 20U);
  const auto steps = pieces.steps();
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].tensor, layout.tensors()[first].spec.name);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(steps[0].steps[i], (i >= 3 && i < 8) || i == 19 ? 2U : 0U) << i;
}

TEST(AskedPieces, TellsHowManyLayInMemory) {
  const auto layout = make_layout();
  const auto experts = find_experts(layout, 0);
  plan::Placement placement(layout);
  for (const auto& chunk : layout.chunks()) {
    for (const auto& span : layout.spans(chunk.id)) {
      const auto piece = layout.tensors()[experts].piece();
      if (span.tensor == experts && span.tensor_first / piece == 5) placement.chunks[chunk.id].weight.keep();
    }
  }
  WeightSlots slots(layout.chunks().size());
  AskedPieces pieces(layout, placement, slots);
  pieces.begin_step(true);
  pieces.add(experts, 4, 3);
  EXPECT_EQ(pieces.counts()[0].asked, 3U);
  EXPECT_EQ(pieces.counts()[0].resident, 1U);

  slots.swap(chunk_of(layout, experts, 5), chunk_of(layout, experts, 9));
  pieces.add_swap(experts);
  pieces.begin_step(true);
  pieces.add(experts, 4, 6);
  EXPECT_EQ(pieces.counts()[0].resident, 2U) << "the ninth lies where the fifth lay";
  EXPECT_EQ(pieces.counts()[0].planned, 2U) << "the plan has the fifth in memory";
  EXPECT_EQ(pieces.counts()[0].swaps, 1U);
  EXPECT_EQ(pieces.training_steps(), 2U);
}

TEST(AskedPieces, LeavesOutEvaluationsAndOtherTensors) {
  const auto layout = make_layout();
  const plan::Placement placement(layout);
  const WeightSlots slots(layout.chunks().size());
  AskedPieces pieces(layout, placement, slots);
  const auto experts = find_experts(layout, 0);
  pieces.begin_step(false);
  pieces.add(experts, 0, 20);
  EXPECT_EQ(pieces.counts()[0].pieces, 0U);
  EXPECT_EQ(pieces.training_steps(), 0U);
  pieces.begin_step(true);
  pieces.add(experts == 0 ? 1 : 0, 0, 1);
  EXPECT_EQ(pieces.counts()[0].pieces, 0U);
  pieces.add(experts, 18, 4);  // there are twenty
  EXPECT_EQ(pieces.counts()[0].asked, 2U);
}

}  // namespace
}  // namespace spillway::execute
