// The finite check and the norm are part of the pass that rounds: they take no byte beside the gradient.
#include "spillway/execute/gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

#include "spillway/execute/reductions.h"
#include "spillway/plan/arena_layout.h"
#include "tests/plan/models.h"
#include "tests/plan/placements.h"

namespace {

std::atomic<std::uint64_t> allocations = 0;

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t& /*none*/) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size > 0 ? size : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}

namespace spillway::execute {
namespace {

/// Layers alone, their gradients and nothing else of a schedule's buffers in use.
class GradientPass : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  GradientPass()
      : description_(plan::test::describe(
            {.layers = 2, .embedding = false, .head = false, .tied = false, .micro_batches = GetParam()})),
        layout_(description_.blocks, description_.chunk_elements) {
    schedule_ = plan::make_schedule(description_, layout_, plan::test::placement_of(layout_), {});
    arena_.resize(lay_out(schedule_), std::byte{0xa5});
    std::uint64_t most = 0;
    for (const auto& tensor : layout_.tensors()) most = std::max(most, tensor.elements);
    values_.assign(most, 0x3f80);  // 1.0 in bf16
  }

  /// All backward passes of a step; returns the norm.
  kernels::Norm pass(Gradients& gradients) {
    gradients.begin(GetParam());
    for (const auto& pass : schedule_.passes) {
      if (pass.kind != plan::PassKind::backward) continue;
      gradients.open(pass);
      const auto& block = layout_.blocks()[pass.block];
      for (std::uint64_t m = 0; m < GetParam(); ++m) {
        for (std::size_t t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
          gradients.take(t, reinterpret_cast<const std::byte*>(values_.data()), m);
        }
      }
      gradients.close();
    }
    return gradients.total();
  }

  /// Whether every byte outside gradients and their fp32 sums is as it was.
  [[nodiscard]] bool untouched() const {
    std::vector<bool> theirs(arena_.size(), false);
    for (const auto& pass : schedule_.passes) {
      for (const auto buffer : {pass[plan::Operand::gradient], pass[plan::Operand::gradient_sums]}) {
        if (buffer == plan::kNone) continue;
        const auto& it = schedule_.buffers[buffer];
        std::fill_n(theirs.begin() + static_cast<std::ptrdiff_t>(it.offset), it.bytes, true);
      }
    }
    for (std::size_t i = 0; i < arena_.size(); ++i) {
      if (!theirs[i] && arena_[i] != std::byte{0xa5}) return false;
    }
    return true;
  }

  const plan::Description description_;
  const state::Layout layout_;
  plan::Schedule schedule_;
  std::vector<std::byte> arena_;
  std::vector<std::uint16_t> values_;
};

TEST_P(GradientPass, NormAndFiniteCheckTakeNoBytesBesideTheGradient) {
  ThreadPool thread_pool(2);
  const auto device = device::make_cpu();
  const auto sizes = plan::device_workspace(layout_, false, description_.tokens);
  const sink::Arithmetic where{*device, 0, nullptr, sizes};
  const auto sink = make_sink(description_, layout_);
  sink->use(where, {});
  Gradients gradients(schedule_, layout_, description_, arena_.data(), nullptr, *sink, thread_pool, where);
  static_cast<void>(pass(gradients));  // the first call of a kernel chooses its instruction set
  const auto before = allocations.load();
  const auto norm = pass(gradients);
  EXPECT_EQ(allocations.load(), before);
  EXPECT_TRUE(untouched());
  EXPECT_TRUE(norm.finite());
  const auto each = static_cast<double>(GetParam() * GetParam());
  EXPECT_EQ(norm.sum, each * static_cast<double>(layout_.parameters()));
  values_.back() = 0x7f80;  // infinity, in the largest tensor
  const auto again = allocations.load();
  EXPECT_FALSE(pass(gradients).finite());
  EXPECT_EQ(allocations.load(), again);
  EXPECT_TRUE(untouched());
}

INSTANTIATE_TEST_SUITE_P(MicroBatches, GradientPass, ::testing::Values(1, 3));

}  // namespace
}  // namespace spillway::execute
