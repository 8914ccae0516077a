// update() against its scalar reference: every optimizer, every form, every instruction set.
#include "spillway/kernels/update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "tests/kernels/bits.h"
#include "tests/kernels/fields.h"

namespace spillway::kernels {
namespace {

using testing::expect_same;
using testing::Fields;

class Update : public ::testing::TestWithParam<std::tuple<Optimizer, Weights, Moments>> {
 protected:
  [[nodiscard]] UpdateForm form() const { return {std::get<1>(GetParam()), std::get<2>(GetParam())}; }
  [[nodiscard]] UpdateStep step() const {
    return {.optimizer = std::get<0>(GetParam()),
            .learning_rate = 1e-3,
            .weight_decay = 0.1,
            .gradient_scale = 0.7f,
            .step = 3,
            .seed = 0x1234567890ABCDEF};
  }

  void expect_like_scalar(std::size_t n, std::size_t offset, std::uint32_t rarity, const UpdateStep& s) const {
    SCOPED_TRACE(::testing::Message() << n << " elements behind " << offset << ", step " << s.step);
    Fields expected(form(), n, offset, rarity), actual = expected;
    scalar::update(form(), expected.span(), s);
    update(form(), actual.span(), s);
    expected.expect_same_as(actual);
  }
};

TEST_P(Update, EveryLengthAndMisalignmentAsScalar) {
  testing::on_every_target([this] {
    for (std::size_t n : testing::lengths()) {
      for (std::size_t offset : {0, 1, 3}) expect_like_scalar(n, offset, 0, step());
    }
    for (std::size_t n : {255, 256, 257, 1029}) expect_like_scalar(n, 2, 0, step());
  });
}

TEST_P(Update, DenormalInfiniteAndNaNAsScalar) {
  testing::on_every_target([this] {
    for (std::uint32_t rarity : {3, 200}) expect_like_scalar(4099, 1, rarity, step());
  });
}

// The settings that bend the constants: bias corrections of 0 and 1, a lerp from the other side, rates of 0.
TEST_P(Update, SettingsAtTheirEdgesAsScalar) {
  std::vector<UpdateStep> steps(8, step());
  steps[0].step = 1;
  steps[1].step = 1'000'000'000;
  steps[2].beta1 = 0.0;
  steps[3].beta2 = 0.0;
  steps[4].beta2 = 1.0;  // a division by zero in every element of Adam
  steps[5].learning_rate = 0.0;
  steps[6].epsilon = 0.0;
  steps[7].weight_decay = 0.0;
  testing::on_every_target([&] {
    for (const UpdateStep& s : steps) expect_like_scalar(1003, 0, 5, s);
  });
}

// Where a span is cut (int8: at a block) changes nothing; nor do other spans that are updated in between.
TEST_P(Update, CutElsewhereTheSame) {
  constexpr std::size_t n = 3 * kQuantBlock + 77;
  const bool blocks = form().moments == Moments::int8;
  Fields whole(form(), n, 0, 0), parts = whole;
  update(form(), whole.span(), step());
  for (const std::size_t cut : {blocks ? kQuantBlock : std::size_t{101}, blocks ? 2 * kQuantBlock : std::size_t{402}}) {
    Fields one = parts;
    update(form(), one.span(cut, n - cut), step());
    update(form(), one.span(0, cut), step());
    whole.expect_same_as(one);
  }
}

// Only what belongs to the span is written: bytes in front and behind survive.
TEST_P(Update, NothingBeyondTheSpanIsWritten) {
  constexpr std::size_t n = kQuantBlock + 45, front = 256, behind = 512;
  Fields fields(form(), n + front + behind, 0, 0);
  const Fields before = fields;
  update(form(), fields.span(front, n), step());
  fields.expect_same_as(before, 0, front);
  fields.expect_same_as(before, front + n, behind);
}

std::string name_of(const ::testing::TestParamInfo<Update::ParamType>& info) {
  static const char* const optimizers[] = {"AdamW", "Adam", "Lion", "Sgd"};
  static const char* const weights[] = {"Split", "Fp32", "Fp16"};
  static const char* const moments[] = {"Fp32", "Bf16", "Int8"};
  const auto at = [](auto value) { return static_cast<std::size_t>(value); };
  return std::string(optimizers[at(std::get<0>(info.param))]) + "_weights" + weights[at(std::get<1>(info.param))] +
         "_moments" + moments[at(std::get<2>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(All, Update,
                         ::testing::Combine(::testing::Values(Optimizer::adamw, Optimizer::adam, Optimizer::lion,
                                                              Optimizer::sgd),
                                            ::testing::Values(Weights::bf16, Weights::fp32, Weights::fp16),
                                            ::testing::Values(Moments::exact, Moments::bf16, Moments::int8)),
                         name_of);

// The division by sqrt(1 - beta2^step) is a corrected product on most targets; here it must be exact for divisors of
// all magnitudes, and for the square roots of a whole range of consecutive floats.
TEST(AdamW, CorrectedReciprocalDividesExactly) {
  constexpr std::size_t n = 4096;
  const UpdateForm form{Weights::fp32, Moments::exact};
  testing::on_every_target([&] {
    for (std::uint32_t round = 0; round < 400; ++round) {
      UpdateStep step{.learning_rate = 1, .beta1 = 0, .beta2 = 1 - 1.0 / (2 + testing::mix(round) % 100000), .step = 1};
      step.step = 1 + testing::mix(round + 7) % 2000;
      std::vector<float> grad(n), weights[2] = {std::vector<float>(n), std::vector<float>(n)};
      for (std::size_t i = 0; i < n; ++i) {
        grad[i] =
            std::bit_cast<float>(0x3F000000u + testing::mix(round * n + static_cast<std::uint32_t>(i)) % 0x1000000);
      }
      for (auto* update_of : {scalar::update, update}) {
        std::vector<float> m(n), v(n);
        auto& weight = weights[update_of == update];
        const auto bytes = [](std::vector<float>& of) { return reinterpret_cast<std::byte*>(of.data()); };
        update_of(form, {.weight = bytes(weight), .moments = {bytes(m), bytes(v)}, .grad = bytes(grad), .n = n}, step);
      }
      expect_same(weights[0], weights[1]);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

}  // namespace
}  // namespace spillway::kernels
