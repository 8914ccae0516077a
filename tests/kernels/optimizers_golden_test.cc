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
using testing::kGoldenElements;

constexpr std::array kOthersKept = {1, 2, 100};
constexpr std::size_t kOthersWordsPerCase = kOthersKept.size() * 2 * kGoldenElements;

constexpr std::uint32_t kOthersGolden[] = {
#include "tests/kernels/optimizers_golden.inc"
};

struct OthersCase {
  Optimizer optimizer;
  double weight_decay;
  float gradient_scale;
  double beta1, beta2;
};
constexpr OthersCase kOthersCases[] = {
    {Optimizer::adam, 0.0, 1.0f, 0.9, 0.999}, {Optimizer::adam, 0.1, 0.37f, 0.9, 0.95},
    {Optimizer::lion, 0.0, 1.0f, 0.9, 0.99},  {Optimizer::lion, 0.1, 0.37f, 0.95, 0.98},
    {Optimizer::sgd, 0.0, 1.0f, 0.9, 0.0},    {Optimizer::sgd, 0.1, 0.37f, 0.5, 0.0},
};
static_assert(std::size(kOthersGolden) == std::size(kOthersCases) * kOthersWordsPerCase);

void run_others_case(const OthersCase& c, const std::uint32_t* golden) {
  auto weight = testing::golden_master();
  std::vector<float> first(kGoldenElements), second(kGoldenElements), grad(kGoldenElements);
  UpdateStep s{.optimizer = c.optimizer,
               .beta1 = c.beta1,
               .beta2 = c.beta2,
               .weight_decay = c.weight_decay,
               .gradient_scale = c.gradient_scale};
  std::size_t kept = 0;
  for (s.step = 1; s.step <= kOthersKept.back(); ++s.step) {
    s.learning_rate = static_cast<double>(s.step) * 1e-4;
    const auto patterns = testing::golden_gradient(static_cast<std::uint32_t>(s.step));
    for (std::size_t i = 0; i < kGoldenElements; ++i) grad[i] = widen(patterns[i]);
    update(
        {Weights::fp32, Moments::exact},
        {.weight = bytes(weight), .moments = {bytes(first), bytes(second)}, .grad = bytes(grad), .n = kGoldenElements},
        s);
    if (s.step != kOthersKept[kept]) continue;
    SCOPED_TRACE(::testing::Message() << "after step " << s.step);
    testing::expect_golden(golden + (2 * kept) * kGoldenElements, weight, "weight");
    testing::expect_golden(golden + (2 * kept + 1) * kGoldenElements, first, "first moment");
    ++kept;
  }
  ASSERT_EQ(kept, kOthersKept.size());
}

TEST(OptimizersGolden, HundredStepsAsPyTorch) {
  testing::on_every_target([] {
    for (std::size_t i = 0; i < std::size(kOthersCases); ++i) {
      SCOPED_TRACE(::testing::Message() << "case " << i);
      run_others_case(kOthersCases[i], kOthersGolden + i * kOthersWordsPerCase);
    }
  });
}

}  // namespace
}  // namespace spillway::kernels
