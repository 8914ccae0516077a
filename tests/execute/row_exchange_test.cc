// The owner of a row of the embedding has the sum of what the tokens of all processes give it.
#include "spillway/execute/row_exchange.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "spillway/network/fake.h"
#include "spillway/plan/routes.h"
#include "tests/plan/models.h"

namespace spillway::execute {
namespace {

constexpr std::size_t kStepTokens = 120, kWidth = 8;
constexpr Bytes kRoom = kStepTokens * kWidth * sizeof(float);

/// A schedule of one pass, whose buffers for sent, received and joined rows lie one behind the other.
plan::Schedule make_schedule(const state::World& world) {
  plan::Schedule out;
  auto& pass = out.passes.emplace_back();
  std::vector operands{plan::Operand::sent_rows, plan::Operand::received_rows};
  if (world.local > 1 && world.machines() > 1) operands.push_back(plan::Operand::machine_rows);
  for (const auto operand : operands) {
    pass[operand] = static_cast<plan::Index>(out.buffers.size());
    auto& buffer = out.buffers.emplace_back();
    buffer.bytes = kRoom;
    buffer.offset = (out.buffers.size() - 1) * kRoom;
  }
  return out;
}

/// One process, with its part of a step.
struct Process {
  Process(const plan::Description& described, const state::Layout& layout, std::span<const std::int64_t> ids,
          std::span<const std::uint64_t> counts)
      : schedule(make_schedule(described.world)),
        memory(3 * kRoom),
        sums(kStepTokens * kWidth),
        rounded(plan::sparse_bytes(kStepTokens, kWidth, sizeof(float))),
        rows(described, layout, 0),
        exchange(schedule, layout, described.world, Arenas(memory.data()), rows) {
    rows.place(sums.data(), rounded.data());
    rows.begin(ids, counts);
    exchange.begin();
  }
  [[nodiscard]] float* sent() { return reinterpret_cast<float*>(memory.data()); }

  const plan::Schedule schedule;
  std::vector<std::byte> memory;
  std::vector<float> sums;
  std::vector<std::byte> rounded;
  SparseEmbedding rows;
  RowExchange exchange;
};

using RowWorld = std::pair<std::size_t, std::size_t>;  ///< processes, and as many of them on each machine
class RowWorlds : public ::testing::TestWithParam<RowWorld> {};

TEST_P(RowWorlds, RowsHaveTheBitsOfOneProcess) {
  const auto [size, local] = GetParam();
  const std::vector<std::uint64_t> counts{30, 10, 45, 35};
  auto description = plan::test::describe(
      {.layers = 1, .hidden = kWidth, .vocabulary = 600, .tokens = kStepTokens, .chunk_elements = 2048});
  description.virtual_ranks = description.micro_batches = counts.size();
  description.weight_dtype = state::ComputeType::fp32;
  const auto layout = description.layout();
  std::vector<std::int64_t> ids;
  for (std::size_t i = 0; i < kStepTokens; ++i) ids.push_back(static_cast<std::int64_t>(i * i % 597));
  std::vector<float> gradient(kStepTokens * kWidth);
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = 1.0F / static_cast<float>(i * i + 3);
  const auto given = [&](std::size_t token) { return reinterpret_cast<const std::byte*>(&gradient[token * kWidth]); };
  ThreadPool thread_pool{2};

  std::vector<float> sums(kStepTokens * kWidth);
  std::vector<std::byte> whole(plan::sparse_bytes(kStepTokens, kWidth, sizeof(float)));
  SparseEmbedding alone(description, layout, 0);
  alone.place(sums.data(), whole.data());
  alone.begin(ids, counts);
  static_cast<void>(alone.round(given(0), thread_pool));

  network::FakeNetwork network(size, 4);
  std::vector<std::unique_ptr<Process>> processes;
  for (std::size_t rank = 0; rank < size; ++rank) {
    description.world = {.size = size, .rank = rank, .local = local};
    auto& it = *processes.emplace_back(std::make_unique<Process>(description, layout, ids, counts));
    const auto own = plan::VirtualRanks(counts.size(), counts.size()).restrict_to(rank, size);
    std::size_t first = 0;
    for (std::size_t m = 0; m < own.first(); ++m) first += counts[m];
    it.rows.sum_parts(given(first), it.sent(), thread_pool);
  }
  for (const auto op : {plan::Op::local_scatter, plan::Op::scatter}) {
    if (!plan::has_hops(op, description.world)) continue;
    for (std::size_t rank = 0; rank < size; ++rank) {
      network.port(rank).start(processes[rank]->exchange.messages(op),
                               [](const std::exception_ptr& error) { EXPECT_FALSE(error); });
    }
    network.move_all();
    EXPECT_EQ(network.under_way(), 0U);
    if (op == plan::Op::scatter) continue;
    for (auto& it : processes) it->exchange.join();
  }
  std::vector<std::byte> found;
  for (auto& it : processes) {
    it->exchange.round();
    const auto rounded = it->rows.rounded();
    found.insert(found.end(), rounded.begin(), rounded.end());
  }
  const auto expected = alone.rounded();
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size()), 0);
}

INSTANTIATE_TEST_SUITE_P(RowExchange, RowWorlds,
                         ::testing::Values(RowWorld{2, 1}, RowWorld{2, 2}, RowWorld{4, 2}, RowWorld{4, 1}));

}  // namespace
}  // namespace spillway::execute
