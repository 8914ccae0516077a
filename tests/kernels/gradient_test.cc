// The gradient's kernels against their scalar references, on every instruction set.
#include "spillway/kernels/gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "spillway/kernels/bf16.h"
#include "tests/kernels/bits.h"

namespace spillway::kernels {
namespace {

using testing::bits_of;
using testing::expect_same;
using testing::lengths_and_tiles;
using testing::numbers;

constexpr std::uint32_t kRarities[] = {0, 3, 4000};  // ordinary numbers; full of special ones; a few of them

/// Compares a kernel that writes `Out` with its reference, from and to arrays misaligned by `offset` elements.
/// Overloads of both are passed as lambdas.
template <class In, class Out, class Kernel, class Reference>
void expect_like_scalar(std::size_t n, const Kernel& kernel, const Reference& reference) {
  for (std::size_t offset : {0, 1, 3}) {
    for (std::uint32_t rarity : kRarities) {
      SCOPED_TRACE(::testing::Message() << n << " elements behind " << offset << ", rarity " << rarity);
      const auto in = numbers<In>(n, offset, 1, rarity);
      auto expected = numbers<Out>(n, offset, 2, rarity), actual = expected;
      const auto wanted = reference(in.data() + offset, expected.data() + offset, n);
      const auto got = kernel(in.data() + offset, actual.data() + offset, n);
      expect_same(expected, actual);
      ASSERT_EQ(bits_of(wanted), bits_of(got));
    }
  }
}

template <class In, class Out, class Kernel, class Reference>
void expect_like_scalar_everywhere(const Kernel& kernel, const Reference& reference) {
  testing::on_every_target([&] {
    for (std::size_t n : lengths_and_tiles()) expect_like_scalar<In, Out>(n, kernel, reference);
  });
}

// Each kernel and its reference as lambdas that return what there is to compare beside the output.
#define SPILLWAY_NORM(call) [](const auto* in, auto* out, std::size_t n) { return call(in, out, n).sum; }
#define SPILLWAY_SUM(call) [](const auto* in, auto* out, std::size_t n) { return call(in, out, n), 0.0; }

using Bf16 = std::uint16_t;

TEST(Gradient, CopyNormBf16AsScalar) {
  expect_like_scalar_everywhere<Bf16, Bf16>(SPILLWAY_NORM(copy_norm), SPILLWAY_NORM(scalar::copy_norm));
}
TEST(Gradient, CopyNormFp32AsScalar) {
  expect_like_scalar_everywhere<float, float>(SPILLWAY_NORM(copy_norm), SPILLWAY_NORM(scalar::copy_norm));
}
TEST(Gradient, RoundNormAsScalar) {
  expect_like_scalar_everywhere<float, Bf16>(SPILLWAY_NORM(round_norm), SPILLWAY_NORM(scalar::round_norm));
}
TEST(Gradient, WidenAsScalar) {
  expect_like_scalar_everywhere<Bf16, float>(SPILLWAY_SUM(widen), SPILLWAY_SUM(scalar::widen));
}
TEST(Gradient, AddBf16AsScalar) {
  expect_like_scalar_everywhere<Bf16, float>(SPILLWAY_SUM(add), SPILLWAY_SUM(scalar::add));
}
TEST(Gradient, AddFp32AsScalar) {
  expect_like_scalar_everywhere<float, float>(SPILLWAY_SUM(add), SPILLWAY_SUM(scalar::add));
}

TEST(Gradient, CopiesInPlace) {
  testing::on_every_target([] {
    const auto before = numbers<float>(1003, 0, 1, 0);
    auto copy = before, in_place = before;
    const Norm expected = copy_norm(before.data(), copy.data(), before.size());
    const Norm actual = copy_norm(in_place.data(), in_place.data(), in_place.size());
    expect_same(before, in_place);
    EXPECT_EQ(expected.sum, actual.sum);
  });
}

TEST(Gradient, CopiesEveryPatternOfBf16) {
  testing::on_every_target([] {
    std::vector<Bf16> in(65536), out(65536);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<Bf16>(i);
    EXPECT_FALSE(copy_norm(in.data(), out.data(), in.size()).finite());
    expect_same(in, out);
  });
}

TEST(Gradient, RoundsToNearestEven) {
  const float in[] = {1.0f, 1.00390625f, 1.01171875f, -1.01171875f, 1.00390637f, 3.4e38f};
  const Bf16 expected[] = {0x3F80, 0x3F80, 0x3F82, 0xBF82, 0x3F81, 0x7F80};
  Bf16 out[6];
  const Norm norm = round_norm(in, out, 6);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(expected[i], out[i]) << in[i];
  EXPECT_FALSE(norm.finite()) << "the last one rounded to infinity";
}

TEST(Gradient, NormIsTheSumOfSquares) {
  std::vector<float> in(100001), out(in.size());
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i % 1000);  // every partial sum is exact
  double expected = 0;
  for (float x : in) expected += double{x} * x;
  EXPECT_EQ(copy_norm(in.data(), out.data(), in.size()).sum, expected);
}

TEST(Gradient, NormOfNothingIsZero) {
  EXPECT_EQ(copy_norm(static_cast<const float*>(nullptr), nullptr, 0).sum, 0);
  EXPECT_TRUE(copy_norm(static_cast<const Bf16*>(nullptr), nullptr, 0).finite());
}

TEST(Gradient, FiniteExactlyWhenEveryElementIs) {
  const float largest = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  const float bad[] = {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()};
  testing::on_every_target([&] {
    for (std::size_t n : {1, 31, 33, 200}) {
      std::vector<float> in(n, largest), out(n);
      in[n / 3] = std::numeric_limits<float>::denorm_min();
      EXPECT_TRUE(copy_norm(in.data(), out.data(), n).finite()) << "squares of the largest floats fit in double";
      for (std::size_t i = 0; i < n; ++i) {
        auto broken = in;
        broken[i] = bad[i % 3];
        ASSERT_FALSE(copy_norm(broken.data(), out.data(), n).finite()) << "element " << i << " of " << n;
      }
    }
  });
}

TEST(Gradient, TilesAddUpToTheWhole) {
  const std::size_t n = 3 * kNormTile + 1001;
  const auto in = numbers<float>(n, 0, 5, 0);
  std::vector<float> out(n);
  double sum = 0;
  for (std::size_t begin = 0; begin < n; begin += kNormTile) {
    sum += copy_norm(in.data() + begin, out.data() + begin, std::min(kNormTile, n - begin)).sum;
  }
  const double whole = copy_norm(in.data(), out.data(), n).sum;
  EXPECT_EQ(bits_of(whole), bits_of(sum));
}

}  // namespace
}  // namespace spillway::kernels
