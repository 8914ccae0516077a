#include "spillway/execute/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

namespace spillway::execute {
namespace {

TEST(ThreadPool, EveryTileRunsOnceInEveryLoop) {
  for (const unsigned threads : {1U, 2U, 3U, 5U}) {
    ThreadPool thread_pool(threads);
    // Many short loops: workers wake while the caller is already past the last tile.
    for (std::size_t round = 0; round < 3000; ++round) {
      const std::size_t tiles = round % 7;
      std::vector<std::atomic<int>> counts(tiles);
      thread_pool.run(tiles, [&](std::size_t tile) { counts[tile].fetch_add(1); });
      for (const auto& count : counts) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, ResultsOfWorkersAreVisibleToTheCaller) {
  ThreadPool thread_pool(4);
  std::vector<std::size_t> values(1000);
  for (int round = 0; round < 200; ++round) {
    thread_pool.run(values.size(), [&](std::size_t tile) { values[tile] += tile; });
  }
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], 200 * i);
}

}  // namespace
}  // namespace spillway::execute
