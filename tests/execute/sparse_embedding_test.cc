// The embedding's rows of a step: gathered by token, their gradients summed in token order, put in place.
#include "spillway/execute/sparse_embedding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "tests/plan/models.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

float to_float(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}
std::uint16_t to_bf16(float value) {  // of small whole numbers, which bf16 holds exactly
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

class Rows : public ::testing::TestWithParam<bool> {
 protected:
  Rows()
      : description(plan::test::describe(
            {.layers = 1, .hidden = 8, .vocabulary = 600, .tied = GetParam(), .tokens = 200, .chunk_elements = 2048})),
        layout(description.layout()),
        rows(description, layout, 0),
        sums(200 * 8),
        rounded(plan::sparse_bytes(200, 8, 2)) {
    rows.place(sums.data(), rounded.data());
    for (std::size_t i = 0; i < 200; ++i) ids.push_back(static_cast<std::int64_t>(i * i % 597));
  }

  const plan::Description description;
  const state::Layout layout;
  SparseEmbedding rows;
  std::vector<float> sums;
  std::vector<std::byte> rounded;
  std::vector<std::int64_t> ids;
  ThreadPool thread_pool{2};
};

/// Calls body(chunk, its weights) for each slice of a table whose every weight is different.
template <class Body>
void each_slice(const state::Layout& layout, const Body& body) {
  for (const auto& chunk : layout.chunks()) {
    if (chunk.block != 0) continue;
    std::vector<std::uint16_t> table(chunk.used);
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::uint16_t>((chunk.first + i) * 7);
    body(chunk, reinterpret_cast<const std::byte*>(table.data()));
  }
}

TEST_P(Rows, AreGatheredForEveryToken) {
  rows.begin(ids);
  std::vector<std::uint16_t> output(200 * 8);
  ASSERT_GT(layout.blocks().front().chunks, 1U);
  each_slice(layout, [&](const state::Chunk& chunk, const std::byte* weights) {
    rows.gather(chunk, weights, reinterpret_cast<std::byte*>(output.data()), thread_pool);
  });
  for (std::size_t t = 0; t < ids.size(); ++t) {
    for (std::size_t k = 0; k < 8; ++k) {
      ASSERT_EQ(output[t * 8 + k], static_cast<std::uint16_t>((static_cast<std::size_t>(ids[t]) * 8 + k) * 7));
    }
  }
}

/// In a world of one process and of three, of which one may have no token of a row.
TEST_P(Rows, PackedAreThereOnceAndUnpackToTheGatheredOnes) {
  const std::vector<std::uint64_t> counts{50, 30, 40, 60, 20};
  auto shared = description;
  shared.virtual_ranks = shared.micro_batches = counts.size();
  for (auto& id : ids) id %= 150;
  for (const std::size_t size : {1, 3}) {
    for (std::size_t rank = 0; rank < size; ++rank) {
      shared.world = {.size = size, .rank = rank};
      SparseEmbedding its_rows(shared, layout, 0);
      its_rows.begin(ids, counts);
      std::vector<std::byte> packed(shared.packed_rows_bytes()), gathered(200 * 8 * 2), unpacked(200 * 8 * 2);
      each_slice(layout, [&](const state::Chunk& chunk, const std::byte* weights) {
        its_rows.gather(chunk, weights, gathered.data(), thread_pool);
        its_rows.pack(chunk, weights, packed.data(), thread_pool);
      });
      const auto select = its_rows.unpack(packed.data(), unpacked.data());
      const std::set<std::uint32_t> places(select.index, select.index + select.count);
      EXPECT_EQ(its_rows.packed_bytes(), shared.row_index_bytes() + places.size() * 8 * 2);
      EXPECT_LT(places.size(), select.count) << "some ids come twice";
      std::fill(packed.begin() + static_cast<std::ptrdiff_t>(its_rows.packed_bytes()), packed.end(), std::byte{0xee});
      device::compute(select, {});
      EXPECT_EQ(unpacked, gathered) << "rank " << rank << " of " << size;
    }
  }
}

TEST_P(Rows, HaveTheSumOfTheirTokensGradients) {
  rows.begin(ids);
  ASSERT_EQ(rows.dense(), GetParam());
  std::fill(sums.begin(), sums.end(), 2.0F);  // what a tied head has left; another table starts from zero
  std::vector<std::uint16_t> gradient(200 * 8);
  std::map<std::int64_t, float> expected;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    const auto value = static_cast<float>(t % 5);
    std::fill_n(gradient.begin() + static_cast<std::ptrdiff_t>(t * 8), 8, to_bf16(value));
    expected.try_emplace(ids[t], GetParam() ? 2.0F : 0.0F).first->second += value;
  }
  const auto norm = rows.round(reinterpret_cast<const std::byte*>(gradient.data()), thread_pool);
  double squares = 0;
  for (const auto& [id, sum] : expected) squares += 8.0 * sum * sum;
  EXPECT_EQ(norm.sum, squares);
  ASSERT_EQ(rows.rows().size(), expected.size());
  for (const auto& chunk : layout.chunks()) {
    if (chunk.block != 0) continue;
    std::vector<std::uint16_t> out(chunk.used, 0x1234);
    rows.patch(chunk, reinterpret_cast<std::byte*>(out.data()));
    const auto first = static_cast<std::int64_t>(chunk.first / 8);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto it = expected.find(first + static_cast<std::int64_t>(i / 8));
      if (it == expected.end()) {
        ASSERT_EQ(out[i], 0x1234) << "another row's gradient is left alone";
      } else {
        ASSERT_EQ(to_float(out[i]), it->second);
      }
    }
  }
}

/// Of ranks [first, first + count) of a row, one micro-batch each; empty: no token of theirs names it.
std::optional<float> ranks_sum(const std::vector<std::vector<float>>& ranks, std::size_t first, std::size_t count) {
  if (count == 1) {
    if (ranks[first].empty()) return std::nullopt;
    return std::accumulate(ranks[first].begin(), ranks[first].end(), 0.0F);
  }
  const auto half = std::bit_ceil(count) / 2;
  const auto left = ranks_sum(ranks, first, half), right = ranks_sum(ranks, first + half, count - half);
  return left && right ? std::optional(*left + *right) : left ? left : right;
}

TEST_P(Rows, OfVirtualRanksAreSummedByRankAndThenAsATree) {
  const std::vector<std::uint64_t> counts{50, 30, 40, 60, 20};
  auto ranked = description;
  ranked.virtual_ranks = 5;
  ranked.micro_batches = counts.size();
  ranked.weight_dtype = state::ComputeType::fp32;
  SparseEmbedding of_ranks(ranked, layout, 0);
  std::vector<std::byte> out(plan::sparse_bytes(200, 8, 4));
  of_ranks.place(sums.data(), out.data());
  for (auto& id : ids) id %= 40;
  of_ranks.begin(ids, counts);
  std::fill(sums.begin(), sums.end(), 0.3F);
  std::vector<float> gradient(200 * 8);
  std::map<std::int64_t, std::vector<std::vector<float>>> by_rank;
  std::size_t token = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    for (std::uint64_t i = 0; i < counts[rank]; ++i, ++token) {
      const auto value = 1.0F / static_cast<float>(token * token + 3);
      std::fill_n(gradient.begin() + static_cast<std::ptrdiff_t>(token * 8), 8, value);
      by_rank.try_emplace(ids[token], counts.size()).first->second[rank].push_back(value);
    }
  }
  static_cast<void>(of_ranks.round(reinterpret_cast<const std::byte*>(gradient.data()), thread_pool));
  const auto* rows_of = reinterpret_cast<const float*>(out.data() + plan::sparse_header(of_ranks.rows().size()));
  for (std::size_t row = 0; row < of_ranks.rows().size(); ++row) {
    const auto of_tokens = ranks_sum(by_rank.at(of_ranks.rows()[row]), 0, counts.size());
    ASSERT_TRUE(of_tokens.has_value());
    EXPECT_EQ(rows_of[row * 8], GetParam() ? 0.3F + *of_tokens : *of_tokens) << "row " << row;
  }
}

/// Each process sums the rows of its own tokens, and whoever owns a row ends its tree.
TEST_P(Rows, OfSeveralProcessesAreThoseOfOne) {
  const std::vector<std::uint64_t> counts{30, 20, 25, 35, 15, 40, 35};
  auto ranked = description;
  ranked.virtual_ranks = 5;
  ranked.micro_batches = counts.size();
  ranked.weight_dtype = state::ComputeType::fp32;
  const auto cut = ranked.layout();
  for (auto& id : ids) id %= 70;
  std::vector<float> gradient(200 * 8);
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = 1.0F / static_cast<float>(i * i + 3);
  const auto given = [&](std::size_t token) { return reinterpret_cast<const std::byte*>(&gradient[token * 8]); };
  SparseEmbedding alone(ranked, cut, 0);
  std::vector<std::byte> expected(plan::sparse_bytes(200, 8, 4));
  alone.place(sums.data(), expected.data());
  alone.begin(ids, counts);
  std::fill(sums.begin(), sums.end(), 0.3F);
  static_cast<void>(alone.round(given(0), thread_pool));
  const auto* rows_of = reinterpret_cast<const float*>(expected.data() + plan::sparse_header(alone.rows().size()));
  for (std::size_t size = 2; size <= 5; ++size) {
    std::vector<std::unique_ptr<SparseEmbedding>> processes;
    std::vector<std::vector<float>> sent(size, std::vector<float>(200 * 8, 7.0F));
    for (std::size_t rank = 0; rank < size; ++rank) {
      ranked.world = {.size = size, .rank = rank};
      processes.push_back(std::make_unique<SparseEmbedding>(ranked, cut, 0));
      processes[rank]->begin(ids, counts);
      const auto own = plan::VirtualRanks(5, counts.size()).restrict_to(rank, size);
      std::size_t first = 0;
      for (std::size_t m = 0; m < own.position_of(own.first()); ++m) first += counts[m];
      processes[rank]->sum_parts(given(first), sent[rank].data(), thread_pool);
    }
    std::size_t rows_seen = 0;
    for (std::size_t rank = 0; rank < size; ++rank) {
      std::vector<float> own(200 * 8, 0.3F);
      std::vector<std::byte> out(plan::sparse_bytes(200, 8, 4));
      processes[rank]->place(own.data(), out.data());
      SparseEmbedding::Parts parts;
      for (std::size_t from = 0; from < size; ++from) {
        EXPECT_EQ(processes[from]->count_rows(from, rank), processes[rank]->count_machine_rows(from, rank));
        std::size_t first = 0;
        for (std::size_t owner = 0; owner < rank; ++owner) first += processes[from]->count_rows(from, owner);
        parts.push_back(&sent[from][first * 8]);
      }
      processes[rank]->round_parts(parts);
      std::int64_t count = 0;
      std::memcpy(&count, out.data(), sizeof count);
      const auto* found =
          reinterpret_cast<const float*>(out.data() + plan::sparse_header(static_cast<std::uint64_t>(count)));
      ASSERT_EQ(std::memcmp(found, rows_of + rows_seen * 8, static_cast<std::size_t>(count) * 8 * sizeof(float)), 0)
          << "rank " << rank << " of " << size;
      double norm = 0, wanted = 0;
      for (const auto& chunk : cut.chunks()) {
        if (chunk.block != 0 || ranked.owner(cut, chunk) != rank) continue;
        norm += processes[rank]->norm_of(chunk);
        wanted += alone.norm_of(chunk);
      }
      EXPECT_EQ(norm, wanted);
      rows_seen += static_cast<std::size_t>(count);
    }
    EXPECT_EQ(rows_seen, alone.rows().size());
  }
}

TEST_P(Rows, RefuseWhatTheTableOrThePlanHasNoRoomFor) {
  EXPECT_ERROR(rows.begin(std::vector<std::int64_t>{3, 600}), ErrorCode::bad_input, "token 1 has id 600");
  EXPECT_ERROR(rows.begin(std::vector<std::int64_t>{-1}), ErrorCode::bad_input, "has id -1");
  EXPECT_ERROR(rows.begin(std::vector<std::int64_t>(201)), ErrorCode::bad_input, "a step of 201 tokens");
  rows.begin({});
  EXPECT_TRUE(rows.rows().empty());
}

TEST_P(Rows, OfARecordThatCannotBeAreRefused) {
  rows.begin(ids);
  const std::vector<std::uint16_t> gradient(200 * 8);
  rows.round(reinterpret_cast<const std::byte*>(gradient.data()), thread_pool);
  std::vector<std::byte> out(layout.chunks()[0].used * 2);
  const auto patch = [&] {
    patch_sparse(layout.blocks()[0], description.weight_dtype, layout.chunks()[0], out.data(), rounded);
  };
  EXPECT_NO_THROW(patch());
  for (const std::int64_t value : {std::int64_t{-1}, std::int64_t{600}}) {  // as the first id, and as the count
    for (const std::size_t at : {0U, 8U}) {
      const auto before = rounded;
      std::memcpy(&rounded[at], &value, sizeof value);
      EXPECT_ERROR(patch(), ErrorCode::corrupt, "names rows that it does not have");
      rounded = before;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tied, Rows, ::testing::Bool());

}  // namespace
}  // namespace spillway::execute
