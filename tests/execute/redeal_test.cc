// Who is given which chunk of what another number of processes has left. That it is the right one:
// contract/redeal_test.
#include "spillway/execute/redeal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/plan/models.h"

namespace spillway::execute {
namespace {

constexpr std::size_t kShards = 4;

plan::Description describe_part(const std::string& frozen, std::size_t size) {
  auto out = plan::test::describe(
      {.layers = 2, .micro_batches = 4, .chunk_elements = 2048, .frozen = frozen, .virtual_ranks = kShards});
  out.world = {.size = size, .rank = 0};
  return out;
}

/// Each rank is given what it has now, once, of a shard that has it, by the rank that reads that.
void expect_right(const std::string& frozen, std::size_t old, std::size_t size) {
  const auto description = describe_part(frozen, size);
  const auto layout = description.layout();
  const auto before = describe_part(frozen, old).ownership(layout), now = description.ownership(layout);
  std::vector<std::size_t> readers;
  for (std::size_t shard = 0; shard < old; ++shard) readers.push_back((shard + 1) % std::min(size, std::size_t{2}));
  std::map<std::pair<std::size_t, std::size_t>, int> given;  // by chunk and rank
  std::map<std::size_t, std::size_t> open;                   // of a rank: the shard that it reads
  std::size_t opened = 0;
  for (const auto& round : deliveries(layout, before, now, readers)) {
    std::set<std::size_t> reading;
    for (const auto& it : round) {
      EXPECT_TRUE(reading.insert(it.reader).second) << "a process reads two chunks at a time";
      EXPECT_EQ(readers[it.shard], it.reader);
      EXPECT_EQ(before.owner(it.chunk).value_or(it.shard), it.shard);
      EXPECT_TRUE(std::ranges::is_sorted(it.to));
      for (const auto rank : it.to) {
        EXPECT_EQ(now.owner(it.chunk).value_or(rank), rank);
        ++given[{it.chunk, rank}];
      }
      const auto last = open.find(it.reader);
      if (last == open.end() || last->second != it.shard) ++opened;
      open[it.reader] = it.shard;
    }
  }
  EXPECT_LE(opened, old) << "a shard is opened twice";
  for (std::size_t chunk = 0; chunk < layout.chunks().size(); ++chunk) {
    for (std::size_t rank = 0; rank < size; ++rank) {
      const int expected = now.owner(chunk).value_or(rank) == rank ? 1 : 0;
      EXPECT_EQ((given[{chunk, rank}]), expected) << "chunk " << chunk << ", rank " << rank;
    }
  }
}

TEST(Redeal, EveryChunkGoesOnceToThoseThatHaveIt) {
  for (std::size_t old = 1; old <= kShards; ++old) {
    for (std::size_t size = 1; size <= kShards; ++size) {
      for (const auto* frozen : {"", "up|down|embed"}) {
        SCOPED_TRACE(text(old, " to ", size, " ", frozen));
        expect_right(frozen, old, size);
      }
    }
  }
}

}  // namespace
}  // namespace spillway::execute
