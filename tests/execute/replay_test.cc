// What a snapshot lacks is told and done again.
#include "spillway/execute/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "spillway/execute/run_storage.h"
#include "spillway/memory/arena.h"
#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using test::Planned;

/// A run of which nothing was published but what it began with.
class ReplayTest : public ::testing::Test {
 protected:
  ReplayTest() : planned({.placement = {1, 1, 1, 1}}), storage(planned.run_plan(), planned.volumes()) {
    {
      execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
      test::fill(run, planned);
      for (const bool finite : {true, false, true}) {
        test::train_step(run, planned, finite);
        run.commit("");
      }
      run.wait_durable();
    }
    Recovery recovery;
    EXPECT_TRUE(storage.open({.reopen = true}, recovery));
    resources.emplace(planned.run_plan(), 1, storage.paths());
    storage.start(recovery);
  }
  ~ReplayTest() override { storage.stop(); }

  const Planned planned;
  std::optional<Resources> resources;
  RunStorage storage;
};

TEST_F(ReplayTest, LacksTheUpdatesSinceTheSnapshot) {
  auto replay = storage.replay(resources->thread_pool());
  EXPECT_EQ(replay.commit().step, 3U);
  for (std::size_t c = 0; c < planned.layout.chunks().size(); ++c) {
    EXPECT_LE(replay.missing(c), 2U) << "the second step was skipped";
    EXPECT_EQ(replay.missing(c) > 0, replay.snapshot(c).version < 3);
  }
  EXPECT_GE(replay.scratch(), largest_grad_bytes(planned.description.rule(), planned.layout));
}

TEST_F(ReplayTest, LoadsTheSameEachTime) {
  auto replay = storage.replay(resources->thread_pool());
  const auto rule = planned.description.rule();
  const auto& chunk = planned.layout.chunks()[0];
  const auto weights = weight_bytes(rule, chunk), bytes = weights + state_bytes(rule, chunk);
  const memory::Arena memory(2 * round_up(bytes, Bytes{4096}) + round_up(replay.scratch(), Bytes{4096}));
  auto* const first = memory.data();
  auto* const second = first + round_up(bytes, Bytes{4096});
  const auto scratch = memory.span().subspan(2 * round_up(bytes, Bytes{4096}));
  replay.load(0, first, first + weights, scratch);
  replay.load(0, second, second + weights, scratch);
  EXPECT_TRUE(std::equal(first, first + bytes, second));
}

}  // namespace
}  // namespace spillway::execute
