// Every byte that an early update may change comes back, and nothing else is touched.
#include "spillway/execute/undo_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "spillway/plan/arena_layout.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::execute {
namespace {

struct Fixture {
  explicit Fixture(std::uint64_t chunk_elements)
      : description(plan::test::describe({.layers = 2,
                                          .hidden = 128,
                                          .ffn = 1024,
                                          .embedding = false,
                                          .tied = false,
                                          .chunk_elements = chunk_elements})),
        layout(description.blocks, description.chunk_elements) {
    schedule =
        plan::make_schedule(description, layout, plan::test::placement_of(layout, {.when = plan::When::early}), {});
    arena.resize(lay_out(schedule));
    std::mt19937 random(1);
    std::ranges::generate(arena, [&] { return static_cast<std::byte>(random()); });
  }

  [[nodiscard]] std::span<std::byte> weight(plan::Index c) {
    return std::span(arena).subspan(
        schedule.buffers[schedule.groups[c].weight.buffer].offset + schedule.groups[c].weight.offset,
        layout.chunks()[c].elements * 2);
  }
  [[nodiscard]] std::span<std::byte> state(plan::Index c) {
    const auto& buffer = schedule.buffers[schedule.groups[c].state.buffer];
    return std::span(arena).subspan(buffer.offset, buffer.bytes);
  }

  plan::Description description;
  state::Layout layout;
  plan::Schedule schedule;
  std::vector<std::byte> arena;
};

TEST(UndoLog, PutsBackEveryByteOfWeightAndStateAndNothingElse) {
  for (const std::uint64_t elements : {2048U, 100'000U, 1U << 20U}) {  // less than a slice, odd slices, many
    Fixture it(elements);
    ThreadPool thread_pool(3);
    const UndoLog log(it.schedule, it.arena.data());
    std::vector<plan::Index> chunks;
    for (plan::Index c = 0; c < it.layout.chunks().size(); c += 2) chunks.push_back(c);
    const auto before = it.arena;
    for (const auto c : chunks) {
      for (std::size_t s = 0; s < log.slices(c); ++s) log.save(c, s);
    }
    const auto saved = it.arena;
    for (const auto c : chunks) {
      for (auto& byte : it.weight(c)) byte = ~byte;
      for (auto& byte : it.state(c)) byte = ~byte;
    }
    for (const auto c : chunks) {
      const auto at = it.weight(c).data() - it.arena.data();
      ASSERT_NE(it.arena[static_cast<std::size_t>(at)], before[static_cast<std::size_t>(at)]);
    }
    log.restore(chunks, thread_pool);
    ASSERT_TRUE(it.arena == saved) << elements << " elements a chunk";
    for (plan::Index c = 0; c < it.layout.chunks().size(); ++c) {  // saving has changed no weight and no state
      const auto same = [&](std::span<const std::byte> now) {
        return std::ranges::equal(
            now, std::span(before).subspan(static_cast<std::size_t>(now.data() - it.arena.data()), now.size()));
      };
      ASSERT_TRUE(same(it.weight(c)) && same(it.state(c))) << "chunk " << c;
    }
  }
}

TEST(UndoLog, AChunkThatWasNotSavedStaysAsItIs) {
  Fixture it(2048);
  ThreadPool thread_pool(1);
  const UndoLog log(it.schedule, it.arena.data());
  const auto before = it.arena;
  log.restore({}, thread_pool);
  EXPECT_TRUE(it.arena == before);
}

}  // namespace
}  // namespace spillway::execute
