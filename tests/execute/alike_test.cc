// Processes that have planned otherwise than rank 0 are found, by all.
#include "spillway/execute/alike.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "spillway/base/error.h"
#include "tests/execute/ranks.h"

namespace spillway::execute {
namespace {

/// What each of two processes is told; `change`: of the second one's plan.
template <class Change>
std::array<std::string, 2> told(const Change& change) {
  network::FakeNetwork network(2);
  std::array<std::string, 2> out;
  std::atomic<int> left = 2;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      test::RankPlan it(rank, 2, &network.port(rank));
      if (rank == 1) change(it);
      try {
        check_alike(it.run_plan());
      } catch (const Error& error) {
        out[rank] = error.what();
      }
      --left;
    });
  }
  while (left > 0) network.move_all();
  for (auto& thread : threads) thread.join();
  return out;
}

TEST(Alike, ArePlansOfOneConfiguration) {
  for (const auto& words : told([](test::RankPlan&) {})) EXPECT_EQ(words, "");
}

TEST(Alike, ArePlansNotThatSendInAnotherOrder) {
  const auto found =
      told([](test::RankPlan& it) { std::swap(it.plan.schedule.network[0], it.plan.schedule.network[1]); });
  for (const auto& words : found) EXPECT_NE(words.find("rank 1 has another plan"), std::string::npos) << words;
}

TEST(Alike, ArePlansNotOfOtherSeeds) {
  const auto found = told([](test::RankPlan& it) { ++it.description.seed; });
  for (const auto& words : found) EXPECT_NE(words.find("rank 1 has another plan"), std::string::npos) << words;
}

}  // namespace
}  // namespace spillway::execute
