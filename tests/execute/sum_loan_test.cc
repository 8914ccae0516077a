// Sums that the caller's products add to: the bits of gradients that are handed over, and no work of the device for
// them.
#include "spillway/execute/sum_loan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "spillway/execute/gradients.h"
#include "spillway/execute/reductions.h"
#include "spillway/plan/arena_layout.h"
#include "tests/execute/watched_device.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using Bf16 = std::vector<std::uint16_t>;

struct StepSize {
  std::uint64_t micro_batches, virtual_ranks;
};

float widen(std::uint16_t value) {
  return std::bit_cast<float>(std::uint32_t{value} << 16);
}

/// Backward passes of layers, whose gradients a simulated device sums behind its caller.
class LentSums {
 public:
  explicit LentSums(StepSize size)
      : size_(size),
        description_(plan::test::describe({.layers = 2,
                                           .embedding = false,
                                           .head = false,
                                           .tied = false,
                                           .micro_batches = size.micro_batches,
                                           .virtual_ranks = size.virtual_ranks})),
        layout_(description_.blocks, description_.chunk_elements),
        device_({.seed = 7}),
        stream_(device_.make_stream()) {
    schedule_ = plan::make_schedule(description_, layout_, plan::test::placement_of(layout_), {});
    arena_.assign(lay_out(schedule_), std::byte{0xff});
    sink_ = make_sink(description_, layout_);
    sink_->use(where(), {});
    gradients_ = std::make_unique<Gradients>(schedule_, layout_, description_, Arenas(arena_.data()), nullptr, *sink_,
                                             threads_, where());
    std::mt19937 random(5);
    for (std::size_t t = 0; t < layout_.tensors().size() * size.micro_batches; ++t) {
      auto& values = values_.emplace_back(layout_.tensors()[t / size.micro_batches].elements);
      for (auto& value : values) value = static_cast<std::uint16_t>(0x3f00 + random() % 0x100 + (random() % 2 << 15));
    }
  }
  ~LentSums() { device_.synchronise(); }

  /// All backward passes; returns the gradients of all blocks, and the norm behind them.
  std::vector<double> step(const std::function<bool(std::size_t tensor)>& is_lent) {
    std::vector<double> out;
    gradients_->begin(size_.micro_batches);
    for (const auto& pass : schedule_.passes) {
      if (pass.kind != plan::PassKind::backward) continue;
      gradients_->open(pass);
      const auto& block = layout_.blocks()[pass.block];
      for (std::uint64_t m = 0; m < size_.micro_batches; ++m) {
        for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
          is_lent(t) ? lend(t, m) : gradients_->take(t, bytes(t, m), m);
        }
      }
      gradients_->close();
      device_.synchronise();
      const auto& buffer = schedule_.buffers[pass[plan::Operand::gradient]];
      const auto* grad = reinterpret_cast<const std::uint16_t*>(arena_.data() + buffer.offset);
      for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
        for (const auto& span : layout_.spans(c)) {
          for (std::uint64_t i = 0; i < span.elements; ++i) out.push_back(widen(grad[span.chunk_first + i]));
        }
        grad += layout_.chunks()[c].gradient_elements;
      }
    }
    out.push_back(gradients_->total().sum);
    return out;
  }

  void lend(std::size_t tensor, std::uint64_t micro_batch) {
    const auto loan = gradients_->lend_sum(tensor, micro_batch);
    const auto& given = values(tensor, micro_batch);
    ASSERT_EQ(loan.sum.size(), given.size());
    device_.call(stream_, [loan, &given] {
      for (std::size_t i = 0; i < given.size(); ++i) loan.sum[i] = widen(given[i]) + (loan.first ? 0 : loan.sum[i]);
    });
    gradients_->end_sum(tensor, micro_batch);
  }

  /// The first backward pass is open.
  std::size_t open_first() {
    gradients_->begin(size_.micro_batches);
    const auto pass = std::ranges::find(schedule_.passes, plan::PassKind::backward, &plan::Pass::kind);
    gradients_->open(*pass);
    return layout_.blocks()[pass->block].first_tensor;
  }
  [[nodiscard]] const std::byte* bytes(std::size_t tensor, std::uint64_t micro_batch) const {
    return reinterpret_cast<const std::byte*>(values(tensor, micro_batch).data());
  }
  Gradients& gradients() { return *gradients_; }
  [[nodiscard]] const std::vector<device::Sum>& sums() const { return device_.sums(); }

 private:
  [[nodiscard]] const Bf16& values(std::size_t tensor, std::uint64_t micro_batch) const {
    return values_[tensor * size_.micro_batches + micro_batch];
  }
  [[nodiscard]] sink::Arithmetic where() {
    return {device_, stream_, nullptr, plan::device_workspace(description_, layout_)};
  }

  const StepSize size_;
  const plan::Description description_;
  const state::Layout layout_;
  plan::Schedule schedule_;
  std::vector<std::byte> arena_;
  ThreadPool threads_{1};
  test::WatchedDevice device_;
  const device::Stream stream_;
  std::unique_ptr<sink::GradientSink> sink_;
  std::unique_ptr<Gradients> gradients_;
  std::vector<Bf16> values_;  ///< by tensor and micro-batch
};

class SumLoans : public ::testing::TestWithParam<StepSize> {};

TEST_P(SumLoans, HaveTheBitsOfGradientsThatAreTaken) {
  LentSums taken(GetParam()), lent(GetParam()), mixed(GetParam());
  const auto expected = taken.step([](std::size_t) { return false; });
  EXPECT_EQ(lent.step([](std::size_t) { return true; }), expected);
  EXPECT_EQ(mixed.step([](std::size_t tensor) { return tensor % 2 == 0; }), expected);
  EXPECT_EQ(lent.step([](std::size_t) { return true; }), expected) << "a second step";
}

TEST_P(SumLoans, TakeNoWorkOfTheDeviceButThatOfVirtualRanks) {
  LentSums taken(GetParam()), lent(GetParam());
  static_cast<void>(taken.step([](std::size_t) { return false; }));
  static_cast<void>(lent.step([](std::size_t) { return true; }));
  const auto of_parts = [](const device::Sum& it) { return it.type == device::Element::bf16; };
  EXPECT_GT(std::ranges::count_if(taken.sums(), of_parts), 0);
  EXPECT_EQ(std::ranges::count_if(lent.sums(), of_parts), 0);
  const auto merges = taken.sums().size() - static_cast<std::size_t>(std::ranges::count_if(taken.sums(), of_parts));
  EXPECT_EQ(lent.sums().size(), merges);
  EXPECT_EQ(merges == 0, GetParam().virtual_ranks == 1);
}

INSTANTIATE_TEST_SUITE_P(Steps, SumLoans,
                         ::testing::Values(StepSize{2, 1}, StepSize{5, 1}, StepSize{3, 2}, StepSize{6, 2},
                                           StepSize{7, 4}));

TEST(SumLoan, IsRefusedWhereEachVirtualRankHasOneMicroBatch) {
  for (const auto size : {StepSize{1, 1}, StepSize{2, 2}, StepSize{2, 4}}) {
    LentSums it(size);
    const auto tensor = it.open_first();
    EXPECT_FALSE(it.gradients().can_lend_sums());
    EXPECT_ERROR(static_cast<void>(it.gradients().lend_sum(tensor, 0)), ErrorCode::bad_input, "call gradient()");
  }
}

TEST(SumLoan, IsOneForEachMicroBatch) {
  LentSums it({3, 1});
  const auto tensor = it.open_first();
  auto& gradients = it.gradients();
  EXPECT_TRUE(gradients.can_lend_sums());
  EXPECT_ERROR(gradients.end_sum(tensor, 0), ErrorCode::bad_input, "was not lent");
  it.lend(tensor, 0);
  EXPECT_ERROR(gradients.end_sum(tensor, 0), ErrorCode::bad_input, "was not lent");
  EXPECT_ERROR(static_cast<void>(gradients.lend_sum(tensor, 0)), ErrorCode::bad_input, "a second gradient");
  EXPECT_ERROR(gradients.take(tensor, it.bytes(tensor, 0), 0), ErrorCode::bad_input, "a second gradient");
  gradients.take(tensor, it.bytes(tensor, 1), 1);
  EXPECT_ERROR(static_cast<void>(gradients.lend_sum(tensor, 1)), ErrorCode::bad_input, "a second gradient");
  static_cast<void>(gradients.lend_sum(tensor, 2));
  EXPECT_ERROR(gradients.end_sum(tensor, 1), ErrorCode::bad_input, "was not lent");
  EXPECT_ERROR(gradients.close(), ErrorCode::bad_input, "end_sum() is missing");
}

TEST(SumLoan, OverwritesArbitraryBytesFirst) {
  LentSums it({2, 1});
  const auto tensor = it.open_first();
  EXPECT_TRUE(it.gradients().lend_sum(tensor, 0).first);
  it.gradients().end_sum(tensor, 0);
  EXPECT_FALSE(it.gradients().lend_sum(tensor, 1).first);
}

}  // namespace
}  // namespace spillway::execute
