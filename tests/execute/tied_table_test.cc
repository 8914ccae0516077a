#include "spillway/execute/tied_table.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "spillway/plan/device_workspace.h"
#include "tests/plan/models.h"

namespace spillway::execute {
namespace {

constexpr std::uint64_t kColumns = 8, kRows = 600, kTokens = 200;

TEST(TiedTable, TakesSquaresOfRowsWithoutTokensAndKeepsTheOthersForTheEmbedding) {
  const auto description = plan::test::describe(
      {.layers = 1, .hidden = kColumns, .vocabulary = kRows, .tied = true, .tokens = kTokens, .chunk_elements = 2048});
  const auto layout = description.layout();
  SparseEmbedding rows(description, layout, 0);
  std::vector<float> sums(kTokens * kColumns);
  std::vector<std::byte> rounded(plan::sparse_bytes(kTokens, kColumns, 2));
  rows.place(sums.data(), rounded.data());
  const auto device = device::make_cpu();
  const sink::Arithmetic where{*device, 0, nullptr, plan::device_workspace(layout, true, kTokens)};
  SquareSlots slots(layout);
  std::vector<double> squares(where.sizes.squares);
  TiedTable table(layout, &rows, state::ComputeType::bf16, where, slots, squares.data());
  EXPECT_TRUE(table.has(0));
  EXPECT_FALSE(table.has(1));
  EXPECT_FALSE(TiedTable(layout, nullptr, state::ComputeType::bf16, where, slots, squares.data()).has(0));

  for (const std::int64_t most : {kRows - 3, std::uint64_t{20}}) {  // two steps with other rows
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(kTokens); ++i) ids.push_back(i * i % most);
    const std::set<std::int64_t> named(ids.begin(), ids.end());
    rows.begin(ids);
    slots.begin();
    table.begin();
    std::fill(sums.begin(), sums.end(), 0.0F);
    const auto& block = layout.blocks()[0];
    for (std::size_t slice = 0; slice < block.chunks; ++slice) {
      const auto elements = layout.chunks()[block.first_chunk + slice].used;
      const std::vector<std::uint16_t> ones(elements, 0x3f80);  // 1.0 in bf16
      table.end_slice(slice, reinterpret_cast<const std::byte*>(ones.data()), nullptr);
    }
    std::vector<double> parts;
    slots.append_sums(squares, parts);
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), 0.0), static_cast<double>((kRows - named.size()) * kColumns));
    EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), 0.0), static_cast<double>(named.size() * kColumns));
  }
}

}  // namespace
}  // namespace spillway::execute
