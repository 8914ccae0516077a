// The weights of a pass in the type that it multiplies in.
#include "spillway/execute/widening.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "spillway/plan/arena_layout.h"
#include "tests/plan/models.h"
#include "tests/plan/residencies.h"

namespace spillway::execute {
namespace {

struct Widened {
  explicit Widened(std::optional<state::ComputeType> compute)
      : description(
            plan::test::describe({.layers = 2, .embedding = false, .head = false, .tied = false, .compute = compute})),
        layout(description.layout()) {
    schedule = plan::make_schedule(description, layout, plan::test::residency_of(layout), {});
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
};

TEST(Widening, LeavesWeightsWhereTheyAreKeptAsTheyAreComputedWith) {
  Widened it(std::nullopt);
  const Widening widening(it.schedule, it.layout, it.description.rule(), it.arena.data(), {*it.cpu});
  for (const auto& visit : it.schedule.visits) {
    auto* const expected = it.arena.data() + it.schedule.buffers[visit.weights].offset;
    EXPECT_EQ(widening.weights(visit), expected);
  }
}

TEST(Widening, CopiesAPassesWeightsToFp32) {
  Widened it(state::ComputeType::fp32);
  const Widening widening(it.schedule, it.layout, it.description.rule(), it.arena.data(), {*it.cpu});
  for (const auto& visit : it.schedule.visits) {
    const auto* kept =
        reinterpret_cast<const std::uint16_t*>(it.arena.data() + it.schedule.buffers[visit.weights].offset);
    const auto values = plan::widened_values(it.layout, visit);
    const std::vector<std::uint16_t> before(kept, kept + values);
    const auto* found = reinterpret_cast<const float*>(widening.weights(visit));
    for (std::uint64_t i = 0; i < values; ++i) {
      ASSERT_EQ(found[i], std::bit_cast<float>(std::uint32_t{before[i]} << 16)) << i;
    }
  }
}

}  // namespace
}  // namespace spillway::execute
