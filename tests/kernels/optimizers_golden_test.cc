// Equality of Adam, SGD and Lion with PyTorch, bit for bit, over 100 steps. make_optimizers_golden.py has the other
// half.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/update.h"
#include "tests/kernels/golden.h"

namespace spillway::kernels {
namespace {

using testing::bytes;

constexpr std::size_t kElements = testing::kGoldenElements;
constexpr std::array kKept = {1, 2, 100};
constexpr std::size_t kWordsPerCase = kKept.size() * 2 * kElements;

constexpr std::uint32_t kGolden[] = {
#include "tests/kernels/optimizers_golden.inc"
};

struct Case {
  Optimizer optimizer;
  double weight_decay;
  float gradient_scale;
  double beta1, beta2;
};
constexpr Case kCases[] = {
    {Optimizer::adam, 0.0, 1.0f, 0.9, 0.999}, {Optimizer::adam, 0.1, 0.37f, 0.9, 0.95},
    {Optimizer::lion, 0.0, 1.0f, 0.9, 0.99},  {Optimizer::lion, 0.1, 0.37f, 0.95, 0.98},
    {Optimizer::sgd, 0.0, 1.0f, 0.9, 0.0},    {Optimizer::sgd, 0.1, 0.37f, 0.5, 0.0},
};
static_assert(std::size(kGolden) == std::size(kCases) * kWordsPerCase);

void run_case(const Case& c, const std::uint32_t* golden) {
  auto weight = testing::golden_master();
  std::vector<float> first(kElements), second(kElements), grad(kElements);
  UpdateStep s{.optimizer = c.optimizer,
               .beta1 = c.beta1,
               .beta2 = c.beta2,
               .weight_decay = c.weight_decay,
               .gradient_scale = c.gradient_scale};
  std::size_t kept = 0;
  for (s.step = 1; s.step <= kKept.back(); ++s.step) {
    s.learning_rate = static_cast<double>(s.step) * 1e-4;
    const auto patterns = testing::golden_gradient(static_cast<std::uint32_t>(s.step));
    for (std::size_t i = 0; i < kElements; ++i) grad[i] = widen(patterns[i]);
    update({Weights::fp32, Moments::fp32},
           {.weight = bytes(weight), .moments = {bytes(first), bytes(second)}, .grad = bytes(grad), .n = kElements}, s);
    if (s.step != kKept[kept]) continue;
    SCOPED_TRACE(::testing::Message() << "after step " << s.step);
    testing::expect_golden(golden + (2 * kept) * kElements, weight, "weight");
    testing::expect_golden(golden + (2 * kept + 1) * kElements, first, "first moment");
    ++kept;
  }
  ASSERT_EQ(kept, kKept.size());
}

TEST(OptimizersGolden, HundredStepsAsPyTorch) {
  testing::on_every_target([] {
    for (std::size_t i = 0; i < std::size(kCases); ++i) {
      SCOPED_TRACE(::testing::Message() << "case " << i);
      run_case(kCases[i], kGolden + i * kWordsPerCase);
    }
  });
}

}  // namespace
}  // namespace spillway::kernels
