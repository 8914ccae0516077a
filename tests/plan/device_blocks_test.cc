// On machines that are described: which blocks live on a device, and that each way to hold a block wins where it
// should.
#include "spillway/plan/device_blocks.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <vector>

#include "spillway/base/error.h"
#include "tests/plan/models.h"

namespace spillway::plan {
namespace {

using test::describe;

class DeviceBlocksTest : public ::testing::Test {
 protected:
  [[nodiscard]] Plan plan(const DeviceTier& tier, Bytes dram = 1 * GiB) const {
    Budget budget{.dram = dram, .device = tier, .streams_weights = true, .window = 2};
    return make_plan(description_, layout_, budget, rates_);
  }
  [[nodiscard]] DeviceBlocks blocks(const Plan& plan) const { return device_blocks(plan, description_, layout_); }
  /// So many blocks a device computes in all.
  static std::size_t blocks_of(const Plan& plan, const Description& description, const state::Layout& layout) {
    const auto it = device_blocks(plan, description, layout);
    return it.device_resident + it.device_updated + it.weights + it.streamed;
  }
  /// Bytes of the device that hold so much.
  [[nodiscard]] Bytes room_for(double weight, double activation, double state) const {
    return plan({.capacity = 1 * GiB, .weight = weight, .activation = activation, .state = state}).device_peak;
  }
  [[nodiscard]] std::size_t all() const {
    const auto it = blocks(plan({.capacity = 1 * GiB, .state = 1}));
    return it.device_resident + it.device_updated + it.weights + it.streamed;
  }

  Description description_ = describe({.layers = 8, .tied = false, .tokens = 16, .micro_batches = 1});
  const state::Layout layout_ = description_.layout();
  /// A device that is fast at everything, a link and a host that are slow beside it.
  Rates rates_{.cores = 4,
               .update = 1e8,
               .update_cores = 2,
               .forward = 1e-4,
               .backward = 2e-4,
               .to_device = 1e9,
               .from_device = 1e9,
               .device_update = 1e10};
};

TEST_F(DeviceBlocksTest, WithRoomForAllOfThemAllBlocksLiveThereAndNothingOfThemCrossesTheLink) {
  const auto found = plan({.capacity = 1 * GiB});
  EXPECT_EQ(blocks(found).device_resident, all());
  const auto boundary = description_.tokens * description_.hidden_size * 2;
  EXPECT_LE(found.to_device_per_step, round_up(boundary, 4096));
  EXPECT_LE(found.from_device_per_step, round_up(boundary, 4096));
  for (const auto& task : found.schedule.tasks) {
    const bool layer = task.lane == Lane::update &&
                       layout_.blocks()[layout_.chunks()[task.what.index].block].role != state::BlockRole::embedding;
    EXPECT_FALSE(layer);
  }
  EXPECT_GT(found.prediction.seconds[Lane::device_update], 0);
  EXPECT_NE(device_blocks_words(found).find("fastest of those compared"), std::string::npos);
}

TEST_F(DeviceBlocksTest, WhereTheHostUpdatesFastAndStatesWouldPushWeightsOutWeightsStay) {
  rates_.update = 1e12;
  rates_.to_device = 5e7;  // what bounds: each weight that does not stay comes twice a step
  const auto found = plan({.capacity = room_for(1, 1, 0) + 64 * KiB});
  EXPECT_EQ(blocks(found).device_resident, 0U);
  EXPECT_EQ(blocks(found).weights, all());
}

TEST_F(DeviceBlocksTest, WhereTheHostUpdatesSlowlyStatesPushWeightsOut) {
  rates_.update = 1e6;
  rates_.to_device = rates_.from_device = 1e11;
  const auto found = plan({.capacity = room_for(1, 1, 0.5), .device_updated = 0});
  EXPECT_GT(blocks(found).device_resident, 0U);
  EXPECT_LT(blocks(found).device_resident, all());
}

/// One slow core, a fast link, no room for states: 12 bytes a parameter each way take less than the host's updates.
TEST_F(DeviceBlocksTest, WhereOnlyTheHostIsSlowStatesComeForTheirUpdates) {
  rates_.update = 1e6;
  rates_.to_device = rates_.from_device = 1e11;
  const auto found = plan({.capacity = room_for(0, 0, 0) + 512 * KiB, .weight = 0, .activation = 0, .grad = 1});
  EXPECT_EQ(blocks(found).device_resident, 0U);
  EXPECT_EQ(blocks(found).device_updated, all());
  Bytes trainable = 0;
  for (const auto& chunk : layout_.chunks()) {
    const auto role = layout_.blocks()[chunk.block].role;
    trainable += role == state::BlockRole::embedding ? 0 : chunk.elements;
  }
  const auto boundaries = (2 * 9 + 2) * round_up(description_.tokens * description_.hidden_size * 2, 4096);
  EXPECT_GE(found.from_device_per_step, 12 * trainable);
  EXPECT_LE(found.from_device_per_step, 12 * trainable + boundaries);  // no gradient
  EXPECT_LE(found.to_device_per_step, 14 * trainable + boundaries);    // weights once more for backward
  const auto compared = found.compared_on(Axis::device_blocks);
  const auto chosen = std::ranges::find(compared, true, &Compared::chosen);
  ASSERT_NE(chosen, compared.end());
  EXPECT_EQ(chosen->value, text("0 blocks resident, ", all(), " more updated there"));
  EXPECT_EQ(chosen->step_seconds, found.prediction.step_seconds);
}

TEST_F(DeviceBlocksTest, ItsPlansAreFew) {
  rates_.update = 1e6;
  const auto found = plan({.capacity = 1 * GiB, .weight = 0});
  EXPECT_LE(found.compared_on(Axis::device_blocks).size(), 12U);  // of 10 blocks: 5, and 4 more
  rates_.update = 1e12;
  rates_.to_device = rates_.from_device = 1e12;
  for (const auto& it : plan({.capacity = 1 * GiB}).compared_on(Axis::device_blocks))
    EXPECT_EQ(it.decisions.blocks.device_updated, 0U);  // nothing to gain
}

/// Where the link is what bounds, states stay where they are.
TEST_F(DeviceBlocksTest, ASlowLinkLeavesStatesOnTheHost) {
  rates_.update = 1e9;
  rates_.to_device = rates_.from_device = 1e8;
  EXPECT_EQ(blocks(plan({.capacity = room_for(0, 0, 0) + 512 * KiB})).device_updated, 0U);
}

TEST_F(DeviceBlocksTest, SomeBlocksPassWhereLinkAndHostAreAsSlow) {
  rates_.update = 5e7;
  rates_.update_cores = 1;
  rates_.to_device = rates_.from_device = 1e9;
  rates_.forward = rates_.backward = 1e-6;
  const auto found = plan({.capacity = room_for(0, 0, 0) + 512 * KiB, .weight = 0});
  EXPECT_GT(blocks(found).device_updated, 0U);
  EXPECT_LT(blocks(found).device_updated, all());
}

TEST_F(DeviceBlocksTest, WithoutRoomAllBlocksAreStreamed) {
  const auto found = plan({.capacity = room_for(0, 0, 0), .weight = 0});
  EXPECT_EQ(blocks(found).device_resident, 0U);
  EXPECT_EQ(blocks(found).streamed, all());
}

TEST_F(DeviceBlocksTest, ASlowDeviceLeavesUpdatesToTheHost) {
  rates_.device_update = 1e5;
  rates_.update = 1e9;
  EXPECT_EQ(blocks(plan({.capacity = 1 * GiB})).device_resident, 0U);
}

/// A budget of DRAM that is too small for all states is enough when some live on the device.
TEST_F(DeviceBlocksTest, ItsMemoryAddsToThatOfTheHost) {
  const auto with = [&](double state) { return plan({.capacity = 1 * GiB, .state = state}).dram_peak; };
  const auto dram = (with(0) + with(1)) / 2;
  EXPECT_THROW(static_cast<void>(plan({.capacity = 1 * GiB, .state = 0}, dram)), Error);
  rates_.device_update = 1e6;  // however slow it is
  const auto found = plan({.capacity = 1 * GiB}, dram);
  EXPECT_GT(blocks(found).device_resident, 0U);
  const auto compared = found.compared_on(Axis::device_blocks);
  const auto none =
      std::ranges::find_if(compared, [](const auto& it) { return it.decisions.blocks == UpdatedThere{}; });
  ASSERT_NE(none, compared.end());
  EXPECT_FALSE(none->fits);
}

TEST_F(DeviceBlocksTest, ThePlanSaysWhyNone) {
  rates_.device_update = 0;
  EXPECT_NE(device_blocks_words(plan({.capacity = 1 * GiB})).find("how fast the device updates is not known"),
            std::string::npos);
  rates_.device_update = 1e10;
  description_ = describe({.layers = 2, .tokens = 16, .optimizer = &optim::lion});
  const auto layout = description_.layout();
  Budget budget{.dram = 1 * GiB, .device = DeviceTier{.capacity = 1 * GiB}};
  const auto found = make_plan(description_, layout, budget, rates_);
  EXPECT_NE(device_blocks_words(found).find("a device updates adamw, and this run has lion"), std::string::npos)
      << device_blocks_words(found);
}

/// What of a plan all processes have to do alike.
struct Alike {
  std::vector<std::pair<Op, Index>> network;
  std::vector<bool> resident, updated, copies;
  bool operator==(const Alike&) const = default;
};

TEST_F(DeviceBlocksTest, SeveralProcessesChooseAlikeWhateverRoomThereIs) {
  std::mt19937 random(7);
  std::size_t resident = 0, updated = 0, fewer = 0;
  rates_.update = 1e6;
  rates_.to_device = rates_.from_device = 1e10;
  for (int round = 0; round < 24; ++round) {
    auto description = describe({.layers = 4,
                                 .tied = false,
                                 .tokens = 16,
                                 .micro_batches = 4,
                                 .chunk_elements = 2048,
                                 .frozen = round % 4 == 3 ? "up|norm" : "",
                                 .virtual_ranks = 4});
    description.step_tokens = 4 * description.tokens;
    description.world.size = 2 + random() % 3;
    const auto layout = description.layout();
    Budget budget{.dram = 1 * GiB, .device = DeviceTier{.capacity = 1 * GiB, .coalesce_to = 4 * KiB}};
    if (round % 3 == 0) {
      budget.paths.push_back({.capacity = 1 * GiB});
      budget.placement.state = 0.5;
    }
    const auto all = make_plan(description, layout, budget, rates_);
    const auto frozen = std::ranges::count(layout.blocks(), 0U, &state::Block::trainable_chunks);
    EXPECT_EQ(all.decisions.blocks.device_resident,
              blocks_of(all, description, layout) - static_cast<std::size_t>(frozen));
    budget.device->capacity = all.device_peak * (1 + random() % 100) / 100;
    std::optional<Alike> expected;
    std::size_t refused = 0;
    for (std::size_t rank = 0; rank < description.world.size; ++rank) {
      description.world.rank = rank;
      try {
        const auto plan = make_plan(description, layout, budget, rates_);
        Alike found;
        for (const auto t : plan.schedule.network) {
          found.network.emplace_back(plan.schedule.tasks[t].op, plan.schedule.tasks[t].what.index);
        }
        for (const auto& it : plan.placement.chunks) {
          found.resident.push_back(it.device_resident());
          found.updated.push_back(it.device_updated());
          found.copies.push_back(it.weight.has_device_copy());
        }
        EXPECT_LE(plan.device_peak, budget.device->capacity)
            << "round " << round << ", rank " << rank << " of " << description.world.size << ": "
            << plan.decisions.blocks.device_resident << " + " << plan.decisions.blocks.device_updated << ", "
            << plan.lookahead.device << " ahead";
        EXPECT_EQ(found, expected.value_or(found)) << "round " << round << ", rank " << rank;
        expected = found;
        resident += plan.decisions.blocks.device_resident;
        updated += plan.decisions.blocks.device_updated;
        fewer += plan.decisions.blocks.device_resident < all.decisions.blocks.device_resident ? 1 : 0;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::does_not_fit);
        ++refused;
      }
    }
    EXPECT_TRUE(refused == 0 || refused == description.world.size) << "round " << round;
  }
  EXPECT_GT(resident, 20U);
  EXPECT_GT(updated, 20U);
  EXPECT_GT(fewer, 10U);
}

/// What is frozen lies on each one's device, as codes, too, and nowhere else; what others have updated comes there.
TEST_F(DeviceBlocksTest, OfABlockThatIsFrozenInPartEachOfSeveralProcessesHasAllWeightsOnItsDevice) {
  auto description = describe({.layers = 2,
                               .embedding = false,
                               .head = false,
                               .micro_batches = 4,
                               .chunk_elements = 2048,
                               .frozen = "up",
                               .packed = "up",
                               .virtual_ranks = 4});
  description.world.size = 2;
  description.step_tokens = 2 * description.tokens;
  const auto layout = description.layout();
  const auto& block = layout.blocks().front();
  Bytes all = 0, trained = 0;
  for (std::size_t c = 0; c < block.chunks; ++c) {
    const auto bytes = weight_bytes(description.rule(), layout.chunks()[c]);
    all += bytes;
    trained += c < block.trainable_chunks ? bytes : 0;
  }
  const Budget budget{.dram = 1 * GiB, .device = DeviceTier{.capacity = 1 * GiB, .state = 1}};
  Bytes up = 0, down = 0;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    description.world.rank = rank;
    const auto found = make_plan(description, layout, budget, rates_);
    const auto& schedule = found.schedule;
    ASSERT_TRUE(found.placement[0].device_resident());
    for (const auto& it : schedule.buffers) EXPECT_FALSE(it.on_host() && it.kind == BufferClass::weight);
    for (const auto& pass : schedule.passes) {
      if (pass.block != 0) continue;
      const auto& weights = schedule.buffers[pass.weights.front().here];
      EXPECT_TRUE(weights.on_device() && weights.whole);
      EXPECT_EQ(weights.bytes, all);
      if (traits(pass.kind).phase != Phase::forward) continue;
      EXPECT_EQ(schedule.buffers[pass.weights.front().whole].bytes, trained);
    }
    for (const auto& task : schedule.tasks) {
      if (!task.moves(ObjectKind::weight) || task.what.index >= block.chunks) continue;
      EXPECT_LE(task.what.end(), block.trainable_chunks);
      (task.lane == Lane::to_device ? up : down) += task.bytes;
    }
  }
  EXPECT_EQ(up, trained) << "of both: what the other one has";
  EXPECT_EQ(down, trained);
}

TEST_F(DeviceBlocksTest, MoreHostMemoryThanIsAmpleChangesNothing) {
  const DeviceTier half{.capacity = room_for(0, 0, 0.5)};
  const auto found = plan(half), larger = plan(half, 3 * GiB);
  EXPECT_TRUE(found.ample);
  EXPECT_EQ(found.decisions.blocks.device_resident, larger.decisions.blocks.device_resident);
  EXPECT_EQ(found.decisions.blocks.device_updated, larger.decisions.blocks.device_updated);
  EXPECT_EQ(found.dram_peak, larger.dram_peak);
  EXPECT_EQ(found.prediction.step_seconds, larger.prediction.step_seconds);
  EXPECT_FALSE(plan(half, found.dram_peak - 1).ample);
}

}  // namespace
}  // namespace spillway::plan
