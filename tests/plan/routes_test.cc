// Weights reach every process and sums their owner, and between two machines each goes once.
#include "spillway/plan/routes.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace spillway::plan {
namespace {

using Hops = std::vector<std::pair<std::size_t, std::size_t>>;  // from, to

/// Those of all processes, as their senders and as their receivers know them, which is the same.
Hops hops_of(Op op, std::size_t size, std::size_t local, std::size_t owner) {
  Hops sent, received;
  for (std::size_t rank = 0; rank < size; ++rank) {
    const state::World world{.size = size, .rank = rank, .local = local};
    each_hop(op, world, owner, [&](std::size_t peer, bool sends) {
      if (sends) sent.emplace_back(rank, peer);
      if (!sends) received.emplace_back(peer, rank);
      EXPECT_EQ(crosses(op), world.machine_of(rank) != world.machine_of(peer));
    });
  }
  EXPECT_EQ(std::multiset(sent.begin(), sent.end()), std::multiset(received.begin(), received.end()));
  EXPECT_EQ(sent.empty(), !has_hops(op, {.size = size, .rank = 0, .local = local}));
  return sent;
}

template <class Body>
void for_worlds(const Body& body) {
  for (const auto& [size, local] :
       {std::pair<std::size_t, std::size_t>{2, 1}, {2, 2}, {3, 1}, {4, 2}, {6, 3}, {8, 2}}) {
    for (std::size_t owner = 0; owner < size; ++owner) body(size, local, owner);
  }
}

TEST(Routes, BringWeightsToEveryProcessOnce) {
  for_worlds([](std::size_t size, std::size_t local, std::size_t owner) {
    std::multiset<std::size_t> have{owner};
    for (const auto op : {Op::gather, Op::local_gather}) {
      const auto hops = hops_of(op, size, local, owner);
      EXPECT_TRUE(op != Op::gather || hops.size() == size / local - 1);
      for (const auto& [from, to] : hops) EXPECT_TRUE(have.contains(from));
      for (const auto& [from, to] : hops) have.insert(to);
    }
    EXPECT_EQ(have.size(), size);
    EXPECT_EQ(std::set(have.begin(), have.end()).size(), size);
  });
}

TEST(Routes, BringTheSumsOfAllToTheOwner) {
  for_worlds([](std::size_t size, std::size_t local, std::size_t owner) {
    std::vector<std::set<std::size_t>> of(size);  // whose sums each has
    for (std::size_t rank = 0; rank < size; ++rank) of[rank] = {rank};
    for (const auto op : {Op::local_scatter, Op::scatter}) {
      const auto hops = hops_of(op, size, local, owner);
      EXPECT_TRUE(op != Op::scatter || hops.size() == size / local - 1);
      for (const auto& [from, to] : hops) {
        for (const auto rank : std::exchange(of[from], {})) EXPECT_TRUE(of[to].insert(rank).second);
      }
    }
    EXPECT_EQ(of[owner].size(), size);
  });
}

TEST(Routes, ShareRelaysAmongTheProcessesOfAMachine) {
  const state::World world{.size = 8, .rank = 0, .local = 4};
  std::set<std::size_t> relays;
  for (std::size_t owner = 0; owner < 4; ++owner) relays.insert(relay_of(world, 1, owner));
  EXPECT_EQ(relays, (std::set<std::size_t>{4, 5, 6, 7}));
  EXPECT_EQ(relay_of(world, 1, 6), 6U) << "an owner is its own";
}

}  // namespace
}  // namespace spillway::plan
