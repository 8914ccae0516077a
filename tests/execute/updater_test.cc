// A chunk is updated tile by tile to the bits of one call for each tensor, by what the update says.
#include "spillway/execute/updater.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "spillway/execute/reductions.h"
#include "spillway/plan/arena_layout.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::execute {
namespace {

class UpdaterTest : public ::testing::Test {
 protected:
  UpdaterTest()
      : description(plan::test::describe({.layers = 2,
                                          .hidden = 128,
                                          .ffn = 1024,
                                          .embedding = false,
                                          .head = false,
                                          .tied = false,
                                          .chunk_elements = 300'000})),
        layout(description.layout()),
        reducer(make_sink(description, layout)) {
    schedule =
        plan::make_schedule(description, layout, plan::test::placement_of(layout, {.when = plan::When::early}), {});
    arena.resize(lay_out(schedule));
    std::mt19937 random(1);
    std::uniform_real_distribution<float> value(0.1F, 1);
    for (std::size_t i = 0; i + 4 <= arena.size(); i += 4) {  // numbers of either width, above zero
      const auto it = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value(random)) >> 16);
      std::memcpy(&arena[i], &it, 2);
      std::memcpy(&arena[i + 2], &it, 2);
    }
  }

  [[nodiscard]] std::byte* at(const plan::Place& place) {
    return arena.data() + schedule.buffers[place.buffer].offset + place.offset;
  }
  [[nodiscard]] state::GroupPointers groups(plan::Index c, bool early) {
    const auto& it = schedule.groups[c];
    return {at(it.weight), at(it.state), at(early ? schedule.early[c].grad : it.grad)};
  }
  [[nodiscard]] optim::Step step(double rate) const {
    auto out = optim::make_step(*description.optimizer, {{"learning_rate", rate}, {"weight_decay", 0.1}});
    out.step = 3;
    return out;
  }
  /// The arena after one call of the kernel for each tensor of the chunk.
  [[nodiscard]] std::vector<std::byte> expected(plan::Index c, bool early, const optim::Step& its) {
    const auto before = arena;
    const auto rule = description.rule();
    for (const auto& span : layout.spans(c)) {
      auto applied = optim::kernel_step(*description.optimizer, its);
      if (!layout.tensors()[span.tensor].spec.decay) applied.weight_decay = 0;
      const auto found = locate(rule, layout.chunks()[c], span, groups(c, early), span.chunk_first, span.elements);
      kernels::update(found.form, found.span, applied);
    }
    const auto after = arena;
    std::ranges::copy(before, arena.begin());
    return after;
  }
  static void run(Updater& updater, plan::Index c, bool early) {
    updater.prepare(c, early);
    for (std::size_t part = 0; part < updater.parts(c); ++part) {
      for (std::size_t tile = updater.tiles(c, part); tile-- > 0;) updater.run(c, part, tile, early);
    }
    updater.finish(c, early);
  }

  const plan::Description description;
  const state::Layout layout;
  const std::unique_ptr<sink::GradientSink> reducer;
  plan::Schedule schedule;
  std::vector<std::byte> arena;
};

TEST_F(UpdaterTest, TilesMakeUpTheChunk) {
  Updater updater(schedule, layout, description.rule(), arena.data(), nullptr, *reducer);
  updater.set(step(0.01));
  for (plan::Index c = 0; c < layout.chunks().size(); ++c) {
    ASSERT_EQ(updater.parts(c), 1U);
    EXPECT_EQ(updater.tiles(c, 0), ceil_div(layout.chunks()[c].used, kUpdateTile));
    EXPECT_FALSE(updater.refits(c));
    const auto after = expected(c, false, step(0.01));
    EXPECT_NE(after, arena);
    run(updater, c, false);
    EXPECT_TRUE(arena == after) << "chunk " << c;
  }
}

TEST_F(UpdaterTest, EarlyUpdatesApplyWhatWasPredictedAndCanBeUndone) {
  Updater updater(schedule, layout, description.rule(), arena.data(), nullptr, *reducer);
  updater.set(step(0.01));
  updater.set_early(step(0.5));
  for (plan::Index c = 0; c < layout.chunks().size(); ++c) {
    const std::vector<std::byte> weight(groups(c, true).weight, groups(c, true).weight + 2 * layout.chunks()[c].used);
    for (std::size_t slice = 0; slice < updater.slices(c); ++slice) updater.save(c, slice);
    const auto after = expected(c, true, step(0.5));
    run(updater, c, true);
    EXPECT_TRUE(arena == after) << "chunk " << c;
    ThreadPool thread_pool(2);
    updater.undo().restore(std::vector{c}, thread_pool);
    EXPECT_TRUE(std::ranges::equal(weight, std::span(groups(c, true).weight, weight.size())));
  }
}

}  // namespace
}  // namespace spillway::execute
