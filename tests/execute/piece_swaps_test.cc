// Pieces that change places beside steps.
#include "spillway/execute/piece_swaps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "spillway/memory/arena.h"
#include "tests/execute/planned.h"

namespace spillway::execute {
namespace {

using test::Planned;

constexpr std::uint64_t kPeriod = 8;

/// Two layers of twenty experts, half of which have room in memory. Every byte of a chunk is the chunk's number.
class PieceSwapsTest : public ::testing::Test {
 protected:
  static test::PlanOptions options() {
    auto shape = test::layers();
    shape.layers = 2;
    shape.experts = 20;
    shape.asked = 0.5;
    return {.shape = shape, .placement = {0.5, 1, 1, 1}, .durability = plan::Durability::none};
  }

  PieceSwapsTest() : planned_(options()), storage_(planned_.run_plan(), planned_.volumes(false)) {
    Recovery recovery;
    EXPECT_TRUE(storage_.open({}, recovery));
    resources_.emplace(planned_.run_plan(), 1, storage_.paths());
    storage_.start(recovery);
    tiers_.emplace(planned_.plan, planned_.layout, planned_.description.rule(), resources_->arenas(), storage_.store());
    asked_.emplace(planned_.layout, planned_.plan.placement, tiers_->slots());
    const auto rule = planned_.description.rule();
    memory_ = memory::Arena(round_up(largest_chunk_bytes(rule, planned_.layout), Bytes{4096}));
    for (const auto& chunk : planned_.layout.chunks()) {
      std::memset(memory_.data(), value_of(chunk.id), memory_.size());
      tiers_->store(chunk.id, memory_.data(), memory_.data());
    }
  }
  ~PieceSwapsTest() override { storage_.stop(); }

  [[nodiscard]] RunPlan plan() const {
    auto out = planned_.run_plan();
    out.piece_period = kPeriod;
    return out;
  }
  static int value_of(std::size_t chunk) { return static_cast<int>(chunk % 251); }

  /// Steps that ask for the experts of each layer whose number has the same remainder by two.
  void ask(std::uint64_t steps, std::uint64_t remainder) {
    for (std::uint64_t s = 0; s < steps; ++s) {
      asked_->begin_step(true);
      for (std::size_t t = 0; t < planned_.layout.tensors().size(); ++t) {
        const auto& spec = planned_.layout.tensors()[t].spec;
        for (std::uint64_t i = remainder; spec.apart && i < spec.pieces; i += 2) asked_->add(t, i, 1);
      }
    }
  }
  [[nodiscard]] std::uint64_t swaps() const {
    std::uint64_t out = 0;
    for (const auto& layer : asked_->counts()) out += layer.swaps;
    return out;
  }
  /// Swaps everything that was chosen.
  void finish(PieceSwaps& swaps) {
    for (auto before = this->swaps() + 1; before != this->swaps();) {
      before = this->swaps();
      swaps.start();
      swaps.wait();
      swaps.apply();
    }
  }
  void expect_every_byte() {
    const auto rule = planned_.description.rule();
    for (const auto& chunk : planned_.layout.chunks()) {
      std::memset(memory_.data(), 0, memory_.size());
      tiers_->load(chunk.id, memory_.data(), nullptr);
      const auto found = memory_.span().first(weight_bytes(rule, chunk));
      const auto value = static_cast<std::byte>(value_of(chunk.id));
      EXPECT_TRUE(std::ranges::all_of(found, [&](std::byte it) { return it == value; })) << "chunk " << chunk.id;
    }
  }
  [[nodiscard]] std::uint64_t count_resident(std::uint64_t remainder) const {
    std::uint64_t out = 0;
    for (const auto& chunk : planned_.layout.chunks()) {
      if (chunk.asked >= 1 || tiers_->resident_weight(chunk.id) == nullptr) continue;
      const auto& span = planned_.layout.spans(chunk.id).front();
      out += (span.tensor_first / planned_.layout.tensors()[span.tensor].piece()) % 2 == remainder ? 1 : 0;
    }
    return out;
  }

  Planned planned_;
  std::optional<Resources> resources_;
  RunStorage storage_;
  std::optional<Tiers> tiers_;
  std::optional<AskedPieces> asked_;
  memory::Arena memory_;
};

TEST_F(PieceSwapsTest, BringAskedPiecesNearAndLoseNoByte) {
  PieceSwaps swaps(plan(), *tiers_, *asked_);
  for (const std::uint64_t remainder : {1, 0, 1}) {
    const auto before = this->swaps();
    for (int period = 0; period < 3; ++period) {
      ask(kPeriod, remainder);
      finish(swaps);
    }
    EXPECT_GT(this->swaps(), before);
    EXPECT_EQ(count_resident(1 - remainder), 0U);
    EXPECT_GT(count_resident(remainder), 0U);
    expect_every_byte();
  }
}

TEST_F(PieceSwapsTest, ChangeNoPlaceBeforeTheyAreApplied) {
  PieceSwaps swaps(plan(), *tiers_, *asked_);
  EXPECT_FALSE(swaps.is_ready());
  ask(kPeriod - 1, 1);
  swaps.start();
  swaps.wait();
  EXPECT_FALSE(swaps.is_ready()) << "it is not time yet";
  ask(1, 1);
  const auto near = count_resident(1);
  swaps.start();
  swaps.wait();
  EXPECT_TRUE(swaps.is_ready());
  EXPECT_EQ(count_resident(1), near);
  expect_every_byte();
  swaps.apply();
  EXPECT_FALSE(swaps.is_ready());
  EXPECT_GT(count_resident(1), near);
  expect_every_byte();
}

TEST_F(PieceSwapsTest, AreUnderWayAsTheStagingMemoryAllows) {
  const auto& chunks = planned_.layout.chunks();
  const auto movable = std::ranges::count_if(chunks, [](const state::Chunk& it) { return it.asked < 1; });
  const auto chunks_of_a_piece = static_cast<std::uint64_t>(movable) / 40;
  const auto pieces = plan::piece_staging(planned_.description, planned_.layout).pairs / chunks_of_a_piece;
  PieceSwaps swaps(plan(), *tiers_, *asked_);
  for (int period = 0; period < 3; ++period) {
    ask(kPeriod, 0);
    finish(swaps);
  }
  const auto before = this->swaps();
  ask(2 * kPeriod, 1);
  swaps.start();
  swaps.wait();
  swaps.apply();
  EXPECT_EQ(this->swaps() - before, pieces);
  finish(swaps);
  EXPECT_GT(this->swaps() - before, pieces);
  expect_every_byte();
}

TEST_F(PieceSwapsTest, EndWithTransfersUnderWay) {
  {
    PieceSwaps swaps(plan(), *tiers_, *asked_);
    ask(kPeriod, 1);
    swaps.start();
  }
  EXPECT_EQ(this->swaps(), 0U);
  expect_every_byte();
}

}  // namespace
}  // namespace spillway::execute
