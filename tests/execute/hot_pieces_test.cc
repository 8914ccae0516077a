// The choice of the pieces that lie in memory.
#include "spillway/execute/hot_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/plan/models.h"

namespace spillway::execute {
namespace {

constexpr std::uint64_t kPeriod = 8;

/// One layer with a matrix of twenty experts, of which the first ten stay in host memory.
class HotPiecesTest : public ::testing::Test {
 protected:
  explicit HotPiecesTest(const plan::test::Shape& shape = {.layers = 1, .experts = 20, .asked = 0.5})
      : description_(plan::test::describe(shape)),
        layout_(description_.layout()),
        tensor_(find_experts(layout_)),
        placement_(layout_),
        slots_(layout_.chunks().size()),
        asked_(layout_, placement_, slots_) {
    for (std::uint64_t i = 0; i < 10; ++i) each_chunk(i, [](plan::Residence& home) { home.keep(); });
  }

  static std::size_t find_experts(const state::Layout& layout) {
    const auto is_apart = [](const state::Tensor& it) { return it.spec.apart; };
    return static_cast<std::size_t>(std::ranges::find_if(layout.tensors(), is_apart) - layout.tensors().begin());
  }
  [[nodiscard]] plan::Range chunks_of(std::uint64_t piece) const {
    plan::Range out;
    for (const auto& chunk : layout_.chunks()) {
      const auto& spans = layout_.spans(chunk.id);
      if (spans.empty() || spans.front().tensor != tensor_) continue;
      if (spans.front().tensor_first / layout_.tensors()[tensor_].piece() != piece) continue;
      if (out.count == 0) out.first = static_cast<plan::Index>(chunk.id);
      ++out.count;
    }
    return out;
  }
  template <class Body>
  void each_chunk(std::uint64_t piece, const Body& body) {
    for (auto c = chunks_of(piece).first; c < chunks_of(piece).end(); ++c) body(placement_.chunks[c].weight);
  }
  [[nodiscard]] const plan::Residence& place_of(std::uint64_t piece) const {
    return placement_[slots_.slot_of(chunks_of(piece).first)].weight;
  }

  /// Steps that ask for `count` pieces from `first` on.
  void ask(std::uint64_t steps, std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t s = 0; s < steps; ++s) {
      asked_.begin_step(true);
      asked_.add(tensor_, first, count);
    }
  }
  /// Chooses, and swaps what was chosen. Returns the pieces that came nearer.
  std::set<std::uint64_t> choose(HotPieces& pieces) {
    std::set<std::uint64_t> out;
    for (const auto& swap : pieces.choose(asked_, slots_)) {
      EXPECT_EQ(swap.tensor, tensor_);
      for (std::uint64_t i = 0; i < 20; ++i) {
        if (chunks_of(i).first == swap.near.first) out.insert(i);
      }
      EXPECT_EQ(swap.near.count, chunks_of(0).count);
      for (plan::Index i = 0; i < swap.near.count; ++i) slots_.swap(swap.near.first + i, swap.far.first + i);
    }
    return out;
  }
  [[nodiscard]] std::set<std::uint64_t> resident() const {
    std::set<std::uint64_t> out;
    for (std::uint64_t i = 0; i < 20; ++i) {
      if (place_of(i).in_memory()) out.insert(i);
    }
    return out;
  }

  const plan::Description description_;
  const state::Layout layout_;
  const std::size_t tensor_;
  plan::Placement placement_;
  WeightSlots slots_;
  AskedPieces asked_;
};

TEST_F(HotPiecesTest, ThatMostStepsAskForComeNearer) {
  HotPieces pieces(description_, layout_, placement_, kPeriod);
  ask(kPeriod, 8, 6);
  EXPECT_EQ(choose(pieces), (std::set<std::uint64_t>{10, 11, 12, 13}));
  for (std::uint64_t i = 8; i < 14; ++i) EXPECT_TRUE(resident().contains(i)) << i;
  EXPECT_EQ(resident().size(), 10U);
}

TEST_F(HotPiecesTest, FollowRecentStepsAndForgetOldOnes) {
  HotPieces pieces(description_, layout_, placement_, kPeriod);
  for (int i = 0; i < 10; ++i) {
    ask(kPeriod, 0, 10);
    EXPECT_TRUE(choose(pieces).empty()) << "these lie in memory";
  }
  ask(kPeriod, 10, 10);
  EXPECT_TRUE(choose(pieces).empty()) << "as many recent steps as older ones";
  ask(kPeriod, 10, 10);
  EXPECT_EQ(choose(pieces).size(), 10U);
}

TEST_F(HotPiecesTest, StayWhereStepsAskByChance) {
  HotPieces pieces(description_, layout_, placement_, kPeriod);
  std::mt19937 random(5);
  std::size_t swaps = 0;
  for (int period = 0; period < 50; ++period) {
    for (std::uint64_t s = 0; s < kPeriod; ++s) {
      asked_.begin_step(true);
      for (std::uint64_t i = 0; i < 20; ++i) {
        if (random() % 2 == 0) asked_.add(tensor_, i, 1);
      }
    }
    swaps += choose(pieces).size();
  }
  EXPECT_LT(swaps, 100U) << "of 50 times ten that could move";
}

TEST_F(HotPiecesTest, StayForSmallDifferences) {
  HotPieces pieces(description_, layout_, placement_, kPeriod);
  ask(kPeriod, 0, 20);
  ask(1, 10, 1);
  EXPECT_TRUE(choose(pieces).empty()) << "one step more";
}

TEST_F(HotPiecesTest, AreChosenEverySoManySteps) {
  HotPieces pieces(description_, layout_, placement_, kPeriod);
  ask(kPeriod - 1, 10, 5);
  EXPECT_FALSE(pieces.is_due(asked_));
  ask(1, 10, 5);
  EXPECT_TRUE(pieces.is_due(asked_));
  choose(pieces);
  EXPECT_FALSE(pieces.is_due(asked_));
  ask(kPeriod, 0, 5);
  EXPECT_TRUE(pieces.is_due(asked_));
  EXPECT_FALSE(HotPieces(description_, layout_, placement_, 0).is_due(asked_)) << "the set of the plan stays";
}

TEST_F(HotPiecesTest, AreNoneWhereAllLieAlike) {
  ask(kPeriod, 0, 5);
  EXPECT_FALSE(HotPieces(description_, layout_, plan::Placement(layout_), kPeriod).is_due(asked_));
}

TEST_F(HotPiecesTest, TakeTheNearestPlacesFirst) {
  for (std::uint64_t i = 0; i < 2; ++i) {
    each_chunk(i, [](plan::Residence& home) { home.copies.add(plan::TierKind::device); });
  }
  HotPieces pieces(description_, layout_, placement_, kPeriod);
  ask(kPeriod, 18, 2);
  ask(4, 2, 8);
  choose(pieces);
  for (const std::uint64_t i : {18U, 19U}) EXPECT_TRUE(place_of(i).has_device_copy()) << i;
  for (std::uint64_t i = 2; i < 10; ++i) EXPECT_TRUE(resident().contains(i)) << i;
}

class SentPieces : public HotPiecesTest {
 protected:
  SentPieces() : HotPiecesTest({.layers = 1, .experts = 20, .asked = 0.5, .shard_frozen = true}) {}
};

TEST_F(SentPieces, Stay) {
  ask(kPeriod, 10, 5);
  EXPECT_FALSE(HotPieces(description_, layout_, placement_, kPeriod).is_due(asked_));
}

class UnevenPieces : public HotPiecesTest {
 protected:
  UnevenPieces() : HotPiecesTest({.layers = 1, .experts = 20, .asked = 0.5, .uneven = true}) {}
};

TEST_F(UnevenPieces, ThatEveryStepAsksForStay) {
  HotPieces pieces(description_, layout_, placement_, kPeriod);
  ask(kPeriod, 10, 10);
  EXPECT_EQ(choose(pieces).size(), 9U);
  EXPECT_TRUE(resident().contains(1));
}

}  // namespace
}  // namespace spillway::execute
