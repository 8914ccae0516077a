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

/// As many processes on each machine.
void expect_all_gathered(std::size_t size, std::size_t local) {
  network::FakeNetwork network(size);
  std::vector<std::unique_ptr<test::RankPlan>> ranks;
  for (std::size_t rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<test::RankPlan>(rank, size, nullptr, local));
  }
  const auto each = [](test::RankPlan& rank, const auto& body) {
    const auto& pass = rank.pass(plan::PassKind::forward, 0);
    auto* at = rank.at(pass.weights.front().here);
    for (auto c = plan::chunks_of(rank.layout, pass).first; c < plan::chunks_of(rank.layout, pass).end(); ++c) {
      const auto& chunk = rank.layout.chunks()[c];
      const std::span<std::byte> bytes(at, weight_bytes(rank.description.rule(), chunk));
      body(bytes, rank.description.owner(rank.layout, chunk));
      at += bytes.size();
    }
  };
  for (auto& rank : ranks) {
    each(*rank, [&](std::span<std::byte> bytes, std::size_t owner) {
      if (owner == rank->description.world.rank) std::ranges::fill(bytes, static_cast<std::byte>(owner + 1));
    });
  }
  for (const auto op : {plan::Op::gather, plan::Op::local_gather}) {
    for (auto& rank : ranks) {
      const auto run_plan = rank->run_plan();
      WeightExchange exchange(run_plan, {rank->memory.data()}, nullptr);
      const auto& pass = rank->pass(plan::PassKind::forward, 0);
      const auto number = static_cast<plan::Index>(&pass - rank->plan.schedule.passes.data());
      const plan::Task task{.op = op, .lane = plan::Lane::network, .what = {plan::ObjectKind::pass, number}};
      EXPECT_FALSE(exchange.adds(task));
      network.port(rank->description.world.rank).start(exchange.messages(task), [](const std::exception_ptr& error) {
        EXPECT_FALSE(error);
      });
    }
    network.move_all();
    EXPECT_EQ(network.under_way(), 0U);
  }
  for (auto& rank : ranks) {
    std::vector<bool> owners(size, false);
    each(*rank, [&](std::span<std::byte> bytes, std::size_t owner) {
      owners[owner] = true;
      EXPECT_TRUE(std::ranges::all_of(bytes, [&](std::byte it) { return it == static_cast<std::byte>(owner + 1); }));
    });
    EXPECT_TRUE(std::ranges::all_of(owners, [](bool found) { return found; }));
  }
}

TEST(WeightExchange, BringsEachChunkFromItsOwner) {
  expect_all_gathered(3, 1);
  expect_all_gathered(2, 2);
  expect_all_gathered(4, 2);
}

}  // namespace
}  // namespace spillway::execute
