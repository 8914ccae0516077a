// Every process has the weights of a pass from those that own them.
#include "spillway/execute/weight_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/execute/ranks.h"

namespace spillway::execute {
namespace {

TEST(WeightExchange, BringsEachChunkFromItsOwner) {
  constexpr std::size_t kSize = 3;
  network::FakeNetwork network(kSize);
  std::vector<std::unique_ptr<test::RankPlan>> ranks;
  for (std::size_t rank = 0; rank < kSize; ++rank) ranks.push_back(std::make_unique<test::RankPlan>(rank, kSize));
  const auto each = [](test::RankPlan& rank, const auto& body) {
    const auto& pass = rank.pass(plan::PassKind::forward, 0);
    auto* at = rank.at(pass.weights);
    for (auto c = plan::chunks_of(rank.layout, pass).first; c < plan::chunks_of(rank.layout, pass).end(); ++c) {
      const auto& chunk = rank.layout.chunks()[c];
      const std::span<std::byte> bytes(at, weight_bytes(rank.description.rule(), chunk));
      body(bytes, rank.description.owner(rank.layout, chunk));
      at += bytes.size();
    }
  };
  int ended = 0;
  for (auto& rank : ranks) {
    each(*rank, [&](std::span<std::byte> bytes, std::size_t owner) {
      if (owner == rank->description.world.rank) std::ranges::fill(bytes, static_cast<std::byte>(owner + 1));
    });
    const auto run_plan = rank->run_plan();
    WeightExchange exchange(run_plan, {rank->memory.data()}, nullptr);
    const auto& pass = rank->pass(plan::PassKind::forward, 0);
    const auto number = static_cast<plan::Index>(&pass - rank->plan.schedule.passes.data());
    const plan::Task task{
        .op = plan::Op::gather, .lane = plan::Lane::network, .what = {plan::ObjectKind::pass, number}};
    network.port(rank->description.world.rank).start(exchange.messages(task), [&](const std::exception_ptr& error) {
      EXPECT_FALSE(error);
      ++ended;
    });
  }
  network.move_all();
  EXPECT_EQ(ended, static_cast<int>(kSize));
  for (auto& rank : ranks) {
    std::vector<bool> owners(kSize, false);
    each(*rank, [&](std::span<std::byte> bytes, std::size_t owner) {
      owners[owner] = true;
      EXPECT_TRUE(std::ranges::all_of(bytes, [&](std::byte it) { return it == static_cast<std::byte>(owner + 1); }));
    });
    EXPECT_TRUE(std::ranges::all_of(owners, [](bool found) { return found; }));
  }
}

}  // namespace
}  // namespace spillway::execute
