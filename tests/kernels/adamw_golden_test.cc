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
using testing::kGoldenElements;

constexpr std::array kAdamwKept = {1, 2, 10, 100};
constexpr std::size_t kAdamwWordsPerCase = kAdamwKept.size() * 3 * kGoldenElements;

constexpr std::uint32_t kAdamwGolden[] = {
#include "tests/kernels/adamw_golden.inc"
};

struct AdamwCase {
  double weight_decay;
  float gradient_scale;
  double beta1, beta2, epsilon;
};
constexpr AdamwCase kAdamwCases[] = {
    {0.0, 1.0f, 0.9, 0.999, 1e-8},
    {0.1, 1.0f, 0.9, 0.999, 1e-8},
    {0.1, 0.37f, 0.9, 0.95, 1e-6},
    {0.01, 0.37f, 0.4, 0.99, 1e-8},
};
static_assert(std::size(kAdamwGolden) == std::size(kAdamwCases) * kAdamwWordsPerCase);

/// The fields of one parameter tensor in either format; step() applies one update, master() shows the weights.
struct Exact {
  std::vector<std::uint16_t> weight = std::vector<std::uint16_t>(kGoldenElements), remainder = weight;
  std::vector<float> exp_avg = std::vector<float>(kGoldenElements), exp_avg_sq = exp_avg;

  Exact() { split(testing::golden_master().data(), weight.data(), remainder.data(), kGoldenElements); }
  void step(const UpdateStep& s) {
    const auto grad = testing::golden_gradient(static_cast<std::uint32_t>(s.step));
    update({},
           {.weight = bytes(weight),
            .remainder = bytes(remainder),
            .moments = {bytes(exp_avg), bytes(exp_avg_sq)},
            .grad = bytes(grad),
            .n = kGoldenElements},
           s);
  }
  [[nodiscard]] std::vector<float> master() const {
    std::vector<float> joined(kGoldenElements);
    join(weight.data(), remainder.data(), joined.data(), kGoldenElements);
    return joined;
  }
};

struct Fp32 {
  std::vector<float> weight = testing::golden_master();
  std::vector<float> exp_avg = std::vector<float>(kGoldenElements), exp_avg_sq = exp_avg;

  void step(const UpdateStep& s) {
    std::vector<float> grad(kGoldenElements);
    widen_all(testing::golden_gradient(static_cast<std::uint32_t>(s.step)), grad);
    update({Weights::fp32, Moments::exact},
           {.weight = bytes(weight),
            .moments = {bytes(exp_avg), bytes(exp_avg_sq)},
            .grad = bytes(grad),
            .n = kGoldenElements},
           s);
  }
  [[nodiscard]] const std::vector<float>& master() const { return weight; }

 private:
  static void widen_all(const std::vector<std::uint16_t>& in, std::vector<float>& out) {
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = widen(in[i]);
  }
};

template <class State>
void run_adamw_case(const AdamwCase& c, const std::uint32_t* golden) {
  State state;
  UpdateStep s{.beta1 = c.beta1,
               .beta2 = c.beta2,
               .epsilon = c.epsilon,
               .weight_decay = c.weight_decay,
               .gradient_scale = c.gradient_scale};
  std::size_t kept = 0;
  for (s.step = 1; s.step <= kAdamwKept.back(); ++s.step) {
    s.learning_rate = static_cast<double>(s.step) * 1e-4;
    state.step(s);
    if (s.step != kAdamwKept[kept]) continue;
    SCOPED_TRACE(::testing::Message() << "after step " << s.step);
    expect_golden(golden + (3 * kept) * kGoldenElements, state.master(), "weight");
    expect_golden(golden + (3 * kept + 1) * kGoldenElements, state.exp_avg, "exp_avg");
    expect_golden(golden + (3 * kept + 2) * kGoldenElements, state.exp_avg_sq, "exp_avg_sq");
    ++kept;
  }
  ASSERT_EQ(kept, kAdamwKept.size());
}

template <class State>
void run_all() {
  testing::on_every_target([] {
    for (std::size_t i = 0; i < std::size(kAdamwCases); ++i) {
      SCOPED_TRACE(::testing::Message() << "case " << i);
      run_adamw_case<State>(kAdamwCases[i], kAdamwGolden + i * kAdamwWordsPerCase);
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
