// The owner of a chunk has the sum of what all processes have made of its gradient.
#include "spillway/execute/gradient_exchange.h"

#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "spillway/execute/reductions.h"
#include "spillway/plan/device_workspace.h"
#include "spillway/plan/routes.h"
#include "tests/execute/ranks.h"

namespace spillway::execute {
namespace {

using Sizes = std::pair<std::size_t, std::size_t>;  ///< processes, and as many of them on each machine
class Worlds : public ::testing::TestWithParam<Sizes> {};

TEST_P(Worlds, AddTheSumsOfAllProcessesAndRoundOnce) {
  const auto [size, local] = GetParam();
  network::FakeNetwork network(size, 4);
  std::vector<std::unique_ptr<test::RankPlan>> ranks;
  std::vector<std::unique_ptr<SquareSlots>> slots;
  std::vector<std::vector<double>> squares(size);
  const auto device = device::make_cpu();
  std::vector<std::unique_ptr<sink::GradientSink>> sinks;
  std::vector<std::unique_ptr<ReducedGradients>> reduced;
  std::vector<std::unique_ptr<GradientExchange>> exchanges;
  double elements = 0;
  for (std::size_t rank = 0; rank < size; ++rank) {
    auto& it = *ranks.emplace_back(std::make_unique<test::RankPlan>(rank, size, nullptr, local));
    slots.push_back(std::make_unique<SquareSlots>(it.layout, true));
    squares[rank].resize(plan::device_workspace(it.description, it.layout).squares);
    sinks.push_back(make_sink(it.description, it.layout));
    reduced.push_back(std::make_unique<ReducedGradients>(it.description, it.layout, *sinks.back(),
                                                         sink::Arithmetic{.device = *device}));
    exchanges.push_back(std::make_unique<GradientExchange>(
        GradientExchange::Parts{it.plan.schedule, it.layout, it.description, Arenas(it.memory.data()), nullptr,
                                *reduced.back(), *sinks.back()},
        *slots.back(), squares[rank]));
    const plan::VirtualRanks all(size, it.description.micro_batches);
    exchanges.back()->begin(all);
    const auto& pass = it.pass(plan::PassKind::backward, 0);
    const auto& buffer = it.plan.schedule.buffers[pass[plan::Operand::gradient_sums]];
    auto* sums = reinterpret_cast<float*>(it.at(pass[plan::Operand::gradient_sums]));
    // The first has a number of bf16; the sum is half way between two, and goes to the even one.
    const auto others = size == 2 ? 2.0F : rank == 1 ? 1.0F : 0.5F;
    std::fill_n(sums, buffer.bytes / sizeof(float), rank == 0 ? 1.0F + 0x1p-7F : others);
  }
  Bytes between = 0;
  for (const auto op : {plan::Op::local_scatter, plan::Op::scatter}) {
    if (!plan::has_hops(op, ranks.front()->description.world)) continue;
    for (std::size_t rank = 0; rank < size; ++rank) {
      const auto& pass = ranks[rank]->pass(plan::PassKind::backward, 0);
      auto messages = exchanges[rank]->messages(pass, op);
      for (const auto& it : messages) between += it.sends && plan::crosses(op) ? it.bytes.size() : 0;
      network.port(rank).start(std::move(messages), [&, rank, op](const std::exception_ptr& error) {
        EXPECT_FALSE(error);
        exchanges[rank]->arrived(ranks[rank]->pass(plan::PassKind::backward, 0), op);
      });
    }
    network.move_all();
    EXPECT_EQ(network.under_way(), 0U);
  }
  double total = 0;
  for (std::size_t rank = 0; rank < size; ++rank) {
    auto& it = *ranks[rank];
    const auto& pass = it.pass(plan::PassKind::backward, 0);
    const auto* grad = reinterpret_cast<const std::uint16_t*>(it.at(pass[plan::Operand::gradient]));
    for (auto c = plan::chunks_of(it.layout, pass).first; c < plan::chunks_of(it.layout, pass).end(); ++c) {
      const auto& chunk = it.layout.chunks()[c];
      if (!it.description.has(it.layout, chunk)) continue;
      for (const auto& span : it.layout.spans(c)) {
        elements += static_cast<double>(span.elements);
        for (std::uint64_t i = 0; i < span.elements; ++i) {
          ASSERT_EQ(std::bit_cast<float>(std::uint32_t{grad[span.chunk_first + i]} << 16), 3.0F);
        }
      }
      grad += chunk.gradient_elements;
    }
    std::vector<double> sums;
    slots[rank]->append_sums(squares[rank], sums);
    total = std::accumulate(sums.begin(), sums.end(), total);
  }
  EXPECT_EQ(total, 9 * elements);
  double parameters = 0;
  const auto& layout = ranks.front()->layout;
  for (const auto& tensor : layout.tensors())
    parameters += tensor.block == 0 ? static_cast<double>(tensor.elements) : 0;
  EXPECT_EQ(elements, parameters);
  // One sum of each gradient leaves each machine but its owner's, however many processes have made it.
  Bytes all = 0;
  for (const auto& chunk : layout.chunks()) all += chunk.block == 0 ? chunk.gradient_elements * sizeof(float) : 0;
  EXPECT_EQ(between, all * (size / local - 1));
}

INSTANTIATE_TEST_SUITE_P(GradientExchange, Worlds, ::testing::Values(Sizes{2, 1}, Sizes{2, 2}, Sizes{4, 2}));

}  // namespace
}  // namespace spillway::execute
