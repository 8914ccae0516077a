// Equality with torch.optim.AdamW(fused=True), bit for bit, over 100 steps. make_adamw_golden.py has the other half.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/split.h"
#include "spillway/kernels/update.h"
#include "tests/kernels/golden.h"

namespace spillway::kernels {
namespace {

using testing::bytes;
using testing::expect_golden;

constexpr std::size_t kElements = testing::kGoldenElements;
constexpr std::array kKept = {1, 2, 10, 100};
constexpr std::size_t kWordsPerCase = kKept.size() * 3 * kElements;

constexpr std::uint32_t kGolden[] = {
#include "tests/kernels/adamw_golden.inc"
};

struct Case {
  double weight_decay;
  float gradient_scale;
  double beta1, beta2, epsilon;
};
constexpr Case kCases[] = {
    {0.0, 1.0f, 0.9, 0.999, 1e-8},
    {0.1, 1.0f, 0.9, 0.999, 1e-8},
    {0.1, 0.37f, 0.9, 0.95, 1e-6},
    {0.01, 0.37f, 0.4, 0.99, 1e-8},
};
static_assert(std::size(kGolden) == std::size(kCases) * kWordsPerCase);

/// The fields of one parameter tensor in either format; step() applies one update, master() shows the weights.
struct Exact {
  std::vector<std::uint16_t> weight = std::vector<std::uint16_t>(kElements), residual = weight;
  std::vector<float> exp_avg = std::vector<float>(kElements), exp_avg_sq = exp_avg;

  Exact() { split(testing::golden_master().data(), weight.data(), residual.data(), kElements); }
  void step(const UpdateStep& s) {
    const auto grad = testing::golden_gradient(static_cast<std::uint32_t>(s.step));
    update({},
           {.weight = bytes(weight),
            .rest = bytes(residual),
            .moments = {bytes(exp_avg), bytes(exp_avg_sq)},
            .grad = bytes(grad),
            .n = kElements},
           s);
  }
  [[nodiscard]] std::vector<float> master() const {
    std::vector<float> joined(kElements);
    join(weight.data(), residual.data(), joined.data(), kElements);
    return joined;
  }
};

struct Fp32 {
  std::vector<float> weight = testing::golden_master();
  std::vector<float> exp_avg = std::vector<float>(kElements), exp_avg_sq = exp_avg;

  void step(const UpdateStep& s) {
    std::vector<float> grad(kElements);
    widen_all(testing::golden_gradient(static_cast<std::uint32_t>(s.step)), grad);
    update(
        {Weights::fp32, Moments::fp32},
        {.weight = bytes(weight), .moments = {bytes(exp_avg), bytes(exp_avg_sq)}, .grad = bytes(grad), .n = kElements},
        s);
  }
  [[nodiscard]] const std::vector<float>& master() const { return weight; }

 private:
  static void widen_all(const std::vector<std::uint16_t>& in, std::vector<float>& out) {
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = widen(in[i]);
  }
};

template <class State>
void run_case(const Case& c, const std::uint32_t* golden) {
  State state;
  UpdateStep s{.beta1 = c.beta1,
               .beta2 = c.beta2,
               .epsilon = c.epsilon,
               .weight_decay = c.weight_decay,
               .gradient_scale = c.gradient_scale};
  std::size_t kept = 0;
  for (s.step = 1; s.step <= kKept.back(); ++s.step) {
    s.learning_rate = static_cast<double>(s.step) * 1e-4;
    state.step(s);
    if (s.step != kKept[kept]) continue;
    SCOPED_TRACE(::testing::Message() << "after step " << s.step);
    expect_golden(golden + (3 * kept) * kElements, state.master(), "weight");
    expect_golden(golden + (3 * kept + 1) * kElements, state.exp_avg, "exp_avg");
    expect_golden(golden + (3 * kept + 2) * kElements, state.exp_avg_sq, "exp_avg_sq");
    ++kept;
  }
  ASSERT_EQ(kept, kKept.size());
}

template <class State>
void run_all() {
  testing::on_every_target([] {
    for (std::size_t i = 0; i < std::size(kCases); ++i) {
      SCOPED_TRACE(::testing::Message() << "case " << i);
      run_case<State>(kCases[i], kGolden + i * kWordsPerCase);
    }
  });
}

TEST(AdamWGolden, Fp32EqualsPyTorch) {
  run_all<Fp32>();
}
TEST(AdamWGolden, ExactEqualsPyTorchOnTheJoinedMaster) {
  run_all<Exact>();
}

}  // namespace
}  // namespace spillway::kernels
