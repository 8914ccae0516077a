// The owner of a chunk has the sum of what all processes have made of its gradient.
#include "spillway/execute/gradient_exchange.h"

#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <vector>

#include "tests/execute/ranks.h"

namespace spillway::execute {
namespace {

TEST(GradientExchange, AddsTheSumsOfAllProcessesAndRoundsOnce) {
  constexpr std::size_t kSize = 2;
  network::FakeNetwork network(kSize, 4);
  std::vector<std::unique_ptr<test::RankPlan>> ranks;
  std::vector<std::unique_ptr<SquareSlots>> slots;
  std::vector<std::vector<double>> squares(kSize);
  std::vector<std::unique_ptr<GradientExchange>> exchanges;
  double elements = 0;
  for (std::size_t rank = 0; rank < kSize; ++rank) {
    auto& it = *ranks.emplace_back(std::make_unique<test::RankPlan>(rank, kSize));
    slots.push_back(std::make_unique<SquareSlots>(it.layout, true));
    squares[rank].resize(slots.back()->others_at());
    exchanges.push_back(std::make_unique<GradientExchange>(
        it.plan.schedule, it.layout, it.description, Arenas(it.memory.data()), nullptr, *slots.back(), squares[rank]));
    const plan::VirtualRanks all(kSize, it.description.micro_batches);
    exchanges.back()->begin(all);
    const auto& pass = it.pass(plan::PassKind::backward, 0);
    const auto& buffer = it.plan.schedule.buffers[pass.grad_sum];
    auto* sums = reinterpret_cast<float*>(it.at(pass.grad_sum));
    // The first has a number of bf16; the sum is half way between two, and goes to the even one.
    std::fill_n(sums, buffer.bytes / sizeof(float), rank == 0 ? 1.0F + 0x1p-7F : 2.0F);
    network.port(rank).start(exchanges.back()->messages(pass),
                             [&, rank, &pass = pass](const std::exception_ptr& error) {
                               EXPECT_FALSE(error);
                               exchanges[rank]->arrived(pass);
                             });
  }
  network.move_all();
  EXPECT_EQ(network.under_way(), 0U);
  double total = 0;
  for (std::size_t rank = 0; rank < kSize; ++rank) {
    auto& it = *ranks[rank];
    const auto& pass = it.pass(plan::PassKind::backward, 0);
    const auto* grad = reinterpret_cast<const std::uint16_t*>(it.at(pass.grad));
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
    total += slots[rank]->total(squares[rank]);
  }
  EXPECT_EQ(total, 9 * elements);
  double parameters = 0;
  const auto& layout = ranks.front()->layout;
  for (const auto& tensor : layout.tensors())
    parameters += tensor.block == 0 ? static_cast<double>(tensor.elements) : 0;
  EXPECT_EQ(elements, parameters);
}

}  // namespace
}  // namespace spillway::execute
