// Places of frozen weights that swap.
#include "spillway/execute/weight_slots.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace spillway::execute {
namespace {

TEST(WeightSlots, HoldTheirOwnChunksAtFirst) {
  const WeightSlots slots(3);
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_EQ(slots.slot_of(c), c);
    EXPECT_EQ(slots.chunk_in(c), c);
  }
}

TEST(WeightSlots, FollowEverySwap) {
  constexpr std::size_t kChunks = 7;
  WeightSlots slots(kChunks);
  std::vector<std::size_t> memory{0, 1, 2, 3, 4, 5, 6};  // by slot
  std::mt19937 random(3);
  for (int i = 0; i < 50; ++i) {
    const auto one = random() % kChunks, other = random() % kChunks;
    std::swap(memory[slots.slot_of(one)], memory[slots.slot_of(other)]);
    slots.swap(one, other);
    for (std::size_t slot = 0; slot < kChunks; ++slot) {
      ASSERT_EQ(slots.chunk_in(slot), memory[slot]);
      ASSERT_EQ(slots.slot_of(memory[slot]), slot);
    }
  }
}

}  // namespace
}  // namespace spillway::execute
