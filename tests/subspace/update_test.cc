// The update of a matrix in its subspace beside a textbook's, and what becomes of moments when its projectors change.
#include "spillway/subspace/update.h"

#include <gtest/gtest.h>

#include <cmath>

#include "spillway/kernels/split.h"
#include "tests/subspace/subspace_case.h"

namespace spillway::subspace {
namespace {

constexpr kernels::UpdateStep kStep{.learning_rate = 0.01, .weight_decay = 0.1, .step = 7};

float bf16(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, 2);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

class SubspaceUpdateTest : public ::testing::Test {
 protected:
  SubspaceUpdateTest() = default;
  explicit SubspaceUpdateTest(bool published) : it(state::StateFormat::exact, published) {}

  using Groups = test::SubspaceCase::Groups;

  /// The masters of the matrix.
  [[nodiscard]] std::vector<float> masters(Groups& groups) const {
    const auto& span = it.layout.spans(it.chunk).front();
    const auto at = locate(it.rule(), it.its_chunk(), span, groups.at(), 0, span.elements).span;
    std::vector<float> out(at.n);
    kernels::join(reinterpret_cast<std::uint16_t*>(at.weight), reinterpret_cast<std::uint16_t*>(at.remainder),
                  out.data(), at.n);
    return out;
  }
  /// AdamW of a weight that was 0, element by element of S.
  [[nodiscard]] std::vector<double> delta(Groups& groups, const kernels::UpdateStep& own) const {
    const auto first = it.moment(groups, 0), second = it.moment(groups, 1);
    std::vector<double> out(first.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double g = bf16(groups.grad.data() + 2 * i);
      const double m = own.beta1 * first[i] + (1 - own.beta1) * g, v = own.beta2 * second[i] + (1 - own.beta2) * g * g;
      const auto count = static_cast<double>(own.step);
      out[i] = -own.learning_rate * m / (1 - std::pow(own.beta1, count)) /
               (std::sqrt(v / (1 - std::pow(own.beta2, count))) + own.epsilon);
    }
    return out;
  }
  /// A projector as a matrix.
  [[nodiscard]] static double entry(const kernels::Projector& p, std::size_t row, std::size_t column) {
    for (auto at = row; p.is_scattered() && at < p.nonzeros * p.stride(); at += p.stride()) {
      if (p.places[at] == column) return p.values[at];
    }
    if (p.is_scattered() || column / p.nonzeros != p.group_of(row)) return 0;
    return p.values[column % p.nonzeros * p.stride() + row];
  }
  void run(Groups& groups) {
    SubspaceUpdate update(it.layout, it.rule());
    const auto& chunk = it.its_chunk();
    update.prepare(chunk, groups.at());
    for (std::size_t t = 0; t < update.first_tiles(chunk); ++t) update.run_first(chunk, groups.at(), kStep, t);
    for (std::size_t t = 0; t < update.tiles(chunk); ++t) update.run(chunk, groups.at(), kStep, t);
    update.finish(chunk, groups.at());
  }

  void expect_textbook();

  const test::SubspaceCase it;
};

class PublishedUpdateTest : public SubspaceUpdateTest {
 protected:
  PublishedUpdateTest() : SubspaceUpdateTest(true) {}
};

TEST_F(SubspaceUpdateTest, StepsInsideAreLargerAndDecayOutside) {
  const auto own = step_inside(kStep, it.space(), {.refits = 2, .begun = 4});
  EXPECT_DOUBLE_EQ(own.learning_rate, 0.01 * std::sqrt(96.0 * 64.0) / 32);
  EXPECT_EQ(own.weight_decay, 0);
  EXPECT_EQ(own.step, 3);
  EXPECT_FLOAT_EQ(kept_by(kStep, true), 0.999F);
  EXPECT_EQ(kept_by(kStep, false), 1);
}

TEST_F(PublishedUpdateTest, StepsInsideAreThoseOfTheRateAsItIs) {
  const auto own = step_inside(kStep, it.space(), {.refits = 2});
  EXPECT_EQ(own.learning_rate, kStep.learning_rate);
  EXPECT_EQ(own.step, 7);
}

TEST_F(SubspaceUpdateTest, IsThatOfATextbookThroughTheProjectors) {
  expect_textbook();
}

TEST_F(PublishedUpdateTest, IsThatOfATextbookThroughTheProjectors) {
  expect_textbook();
}

void SubspaceUpdateTest::expect_textbook() {
  const optim::RefitRecord record{.refits = 1};
  const auto projectors = it.projectors(1, record);
  auto groups = it.groups(projectors, projectors);
  const auto before = masters(groups);
  const auto change = delta(groups, step_inside(kStep, it.space(), record));
  const auto expansion = expansion_of(it.space(), projectors.data(), nullptr, {});
  run(groups);
  const auto after = masters(groups);
  const auto& space = it.space();
  for (std::size_t i = 0; i < space.rows; i += 7) {
    for (std::size_t j = 0; j < space.columns; j += 5) {
      double sum = 0;
      for (std::size_t a = 0; a < space.rank; ++a) {
        for (std::size_t b = 0; b < space.rank; ++b) {
          sum += entry(expansion.p, i, a) * change[a * space.rank + b] * entry(expansion.q, j, b);
        }
      }
      const auto element = i * space.columns + j;
      ASSERT_NEAR(after[element], 0.999 * before[element] + sum, 1e-5) << i << ", " << j;
    }
  }
}

TEST_F(SubspaceUpdateTest, TheFirstProjectorsBecomeThoseOfTheStateBeforeIt) {
  const auto given = it.projectors(2, {.refits = 1});
  auto first = it.groups(it.projectors(1, {}), given), later = it.groups(given, given);
  run(first);
  run(later);
  EXPECT_EQ(masters(first), masters(later));
  EXPECT_EQ(it.adopted(first), given);
}

TEST_F(SubspaceUpdateTest, FirstProjectorsThatMomentsBeginWithAreForTheNext) {
  auto groups = it.groups(std::vector<std::byte>(optim::projector_fields(it.space()).bytes),
                          it.projectors(2, {.refits = 1, .begun = 7}));
  const auto before = masters(groups);
  run(groups);
  const auto after = masters(groups);
  for (std::size_t i = 0; i < before.size(); i += 11) ASSERT_FLOAT_EQ(after[i], 0.999F * before[i]);
  EXPECT_EQ(it.adopted(groups), it.projectors(2, {.refits = 1, .begun = 7}));
  EXPECT_EQ(it.moment(groups, 0), std::vector<float>(it.space().elements(), 0));
}

TEST_F(SubspaceUpdateTest, MomentsAreCarriedToOtherProjectorsOrBegunAnew) {
  SubspaceUpdate update(it.layout, it.rule());
  const auto ours = it.projectors(1, {.refits = 1}), other = it.projectors(2, {.refits = 2}),
             anew = it.projectors(2, {.refits = 2, .begun = 9});
  auto same = it.groups(ours, it.projectors(2, {.refits = 1, .samples = 3}));
  const auto before = it.moment(same, 0);
  update.finish(it.its_chunk(), same.at());
  EXPECT_EQ(it.moment(same, 0), before);
  EXPECT_EQ(it.adopted(same), it.projectors(1, {.refits = 1, .samples = 3})) << "the record alone is new";

  auto carried = it.groups(ours, other);
  update.finish(it.its_chunk(), carried.at());
  auto expected = before;
  carry_over(it.space(), ours.data(), other.data(), 0, expected);
  EXPECT_EQ(it.moment(carried, 0), expected);
  EXPECT_NE(expected, before);
  EXPECT_EQ(it.adopted(carried), other);

  auto begun = it.groups(ours, anew);
  update.finish(it.its_chunk(), begun.at());
  EXPECT_EQ(it.moment(begun, 1), std::vector<float>(before.size(), 0));
  EXPECT_EQ(it.adopted(begun), anew);
}

}  // namespace
}  // namespace spillway::subspace
