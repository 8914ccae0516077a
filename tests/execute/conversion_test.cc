// The weights of a pass in what layers multiply in.
#include "spillway/execute/conversion.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "spillway/plan/arena_layout.h"
#include "spillway/plan/conversion.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace spillway::execute {
namespace {

struct ConvertedPasses {
  explicit ConvertedPasses(std::optional<state::ComputeType> compute)
      : description(
            plan::test::describe({.layers = 2, .embedding = false, .head = false, .tied = false, .compute = compute})),
        layout(description.layout()) {
    schedule = plan::make_schedule(description, layout, plan::test::placement_of(layout), {});
    arena.resize(lay_out(schedule));
    for (std::size_t i = 0; i + 1 < arena.size(); i += 2) {
      const auto value = static_cast<std::uint16_t>(0x3f00 + i / 2 % 128);
      std::memcpy(&arena[i], &value, 2);
    }
  }

  const plan::Description description;
  const state::Layout layout;
  plan::Schedule schedule;
  std::vector<std::byte> arena;
  const std::unique_ptr<device::Device> cpu = device::make_cpu();
  const WeightSlots slots{layout.chunks().size()};
};

TEST(Conversion, LeavesWeightsWhereTheyAreKeptAsTheyAreComputedWith) {
  ConvertedPasses it(std::nullopt);
  const Conversion conversion(it.description, it.layout, it.schedule, it.arena.data(), {*it.cpu}, it.slots);
  for (const auto& pass : it.schedule.passes) {
    auto* const expected = it.arena.data() + it.schedule.buffers[pass.weights.front().here].offset;
    EXPECT_EQ(conversion.weights(pass), expected);
  }
}

TEST(Conversion, CopiesAPassesWeightsToFp32) {
  ConvertedPasses it(state::ComputeType::fp32);
  const Conversion conversion(it.description, it.layout, it.schedule, it.arena.data(), {*it.cpu}, it.slots);
  for (const auto& pass : it.schedule.passes) {
    const auto* kept =
        reinterpret_cast<const std::uint16_t*>(it.arena.data() + it.schedule.buffers[pass.weights.front().here].offset);
    const auto values = plan::converted_bytes(it.description, it.layout, pass) / sizeof(float);
    const std::vector<std::uint16_t> before(kept, kept + values);
    const auto* found = reinterpret_cast<const float*>(conversion.weights(pass));
    for (std::uint64_t i = 0; i < values; ++i) {
      ASSERT_EQ(found[i], std::bit_cast<float>(std::uint32_t{before[i]} << 16)) << i;
    }
  }
}

}  // namespace
}  // namespace spillway::execute
