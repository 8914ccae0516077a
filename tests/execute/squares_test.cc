// The norm of a gradient from its tiles: every element counts once, a tied table's rows of the step's tokens not at
// all.
#include "spillway/execute/squares.h"

#include <gtest/gtest.h>

#include <numeric>

#include "spillway/execute/sparse_embedding.h"
#include "spillway/plan/device_workspace.h"
#include "tests/plan/models.h"

namespace spillway::execute {
namespace {

using plan::test::describe;

double total(const SquareSlots& slots, const std::vector<double>& squares) {
  std::vector<double> sums;
  slots.append_sums(squares, sums);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

TEST(SquareSlots, HaveAPlaceForEveryTile) {
  const auto description = describe({.layers = 2, .hidden = 512, .ffn = 300, .vocabulary = 900, .tied = false});
  const auto layout = description.layout();
  SquareSlots slots(layout);
  const auto sizes = plan::device_workspace(layout, false, description.tokens);
  EXPECT_EQ(slots.other_rows(0, {}), sizes.squares) << "behind all others";
  slots.begin();
  std::vector<double> squares(sizes.squares, 1.0);
  EXPECT_EQ(total(slots, squares), 0.0);  // nothing was written
  double tiles = 0;
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    EXPECT_LT(slots.tensor(t), sizes.squares);
    tiles += static_cast<double>(device::square_tiles(layout.tensors()[t].elements));
  }
  EXPECT_EQ(total(slots, squares), tiles);
  slots.begin();
  EXPECT_EQ(total(slots, squares), 0.0);
}

TEST(SquareSlots, HaveASumForEachPartOfATensorThatLiesInAChunkOfItsOwn) {
  const auto description = describe({.layers = 2, .hidden = 512, .ffn = 300, .vocabulary = 900, .tied = false});
  const auto layout = description.layout();
  SquareSlots slots(layout, true);
  const auto sizes = plan::device_workspace(layout, false, description.tokens, true);
  EXPECT_EQ(slots.other_rows(0, {}), sizes.squares) << "behind all others";
  slots.begin();
  const std::vector<double> squares(sizes.squares, 1.0);
  std::size_t pieces = 0;
  double tiles = 0;
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    std::uint64_t next = 0;
    for (std::size_t i = 0; i < slots.pieces(t).size(); ++i, ++pieces) {
      const auto& piece = slots.pieces(t)[i];
      EXPECT_EQ(piece.first, next);
      next += piece.elements;
      EXPECT_LT(slots.piece(t, i), sizes.squares);
      tiles += static_cast<double>(device::square_tiles(piece.elements));
    }
    EXPECT_EQ(next, layout.tensors()[t].elements);
  }
  EXPECT_GT(pieces, layout.tensors().size());
  std::vector<double> sums;
  slots.append_sums(squares, sums);
  EXPECT_EQ(sums.size(), pieces + layout.chunks().size());
  EXPECT_EQ(total(slots, squares), tiles);
}

TEST(OtherRows, AreTheRowsThatNoTokenNames) {
  const auto description = describe({.layers = 1, .hidden = 512, .vocabulary = 1000, .tied = true, .tokens = 64});
  const auto layout = description.layout();
  const auto& table = layout.blocks().front();
  SparseEmbedding rows(description, layout, 0);
  const std::vector<std::int64_t> ids{0, 1, 7, 7, 500, 998, 999};
  rows.begin(ids);
  const auto sizes = plan::device_workspace(layout, true, 64);
  std::vector<device::Part> parts;
  std::uint64_t covered = 0;
  SquareSlots slots(layout);
  std::vector<OtherRows> others(table.chunks);
  std::vector<double> squares(sizes.squares, 0.0);
  for (std::size_t c = 0; c < table.chunks; ++c) {
    const auto& chunk = layout.chunks()[table.first_chunk + c];
    list_other_rows(rows, chunk, table.columns, others[c], parts);
    EXPECT_EQ(std::accumulate(others[c].runs.begin(), others[c].runs.end(), std::size_t{0}), others[c].count);
    const auto at = slots.other_rows(table.first_chunk + c, others[c]);
    for (std::size_t i = 0; i < others[c].count; ++i) {
      const auto& part = parts[others[c].first + i];
      EXPECT_LE(part.count, device::kSquaresTile);
      covered += part.count;
      squares.at(at + i) = static_cast<double>(part.count);
      for (const auto id : ids) {
        const auto first = static_cast<std::uint64_t>(id) * table.columns;
        const auto begin = chunk.first + part.first;
        EXPECT_TRUE(first + table.columns <= begin || first >= begin + part.count) << "row " << id;
      }
    }
  }
  EXPECT_EQ(covered, (1000 - 6) * table.columns);
  EXPECT_LE(parts.size(), sizes.parts);
  EXPECT_EQ(total(slots, squares), static_cast<double>(covered));
}

}  // namespace
}  // namespace spillway::execute
