#include "spillway/kernels/gram.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spillway/kernels/gram.cc"
#include <hwy/foreach_target.h>

#include "spillway/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {
namespace {

using Wide = hn::CappedTag<double, kGramTile>;

/// panel[line][side]: the lines in double, zeros behind them.
HWY_INLINE void widen_lines(const float* lines, std::size_t stride, std::size_t count, std::size_t n, double* panel) {
  const Wide d;
  const hn::Rebind<float, Wide> narrow;
  const auto side = gram_side(n), lanes = hn::Lanes(d);
  for (std::size_t line = 0; line < count; ++line) {
    const float* const in = lines + line * stride;
    double* const out = panel + line * side;
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) hn::StoreU(hn::PromoteTo(d, hn::LoadU(narrow, in + i)), d, out + i);
    for (; i < n; ++i) out[i] = in[i];
    for (; i < side; ++i) out[i] = 0;
  }
}

/// kGramTile rows from `row` on, a vector of columns from `column` on.
HWY_INLINE void add_tile(const double* panel, std::size_t side, std::size_t count, std::size_t row, std::size_t column,
                         double* gram) {
  const Wide d;
  double* const to = gram + row * side + column;
  const auto at = [=](std::size_t i) HWY_ATTR { return hn::LoadU(d, to + i * side); };
  // One array each would keep its vectors in memory.
  auto s0 = at(0), s1 = at(1), s2 = at(2), s3 = at(3), s4 = at(4), s5 = at(5), s6 = at(6), s7 = at(7);
  for (std::size_t line = 0; line < count; ++line, panel += side) {
    const auto x = hn::LoadU(d, panel + column);
    const auto y = [=](std::size_t i) HWY_ATTR { return hn::Set(d, panel[row + i]); };
    // The product is exact: it does not matter whether the target fuses this.
    s0 = hn::MulAdd(x, y(0), s0), s1 = hn::MulAdd(x, y(1), s1), s2 = hn::MulAdd(x, y(2), s2);
    s3 = hn::MulAdd(x, y(3), s3), s4 = hn::MulAdd(x, y(4), s4), s5 = hn::MulAdd(x, y(5), s5);
    s6 = hn::MulAdd(x, y(6), s6), s7 = hn::MulAdd(x, y(7), s7);
  }
  const auto put = [=](std::size_t i, Vec<Wide> sum) HWY_ATTR { hn::StoreU(sum, d, to + i * side); };
  put(0, s0), put(1, s1), put(2, s2), put(3, s3), put(4, s4), put(5, s5), put(6, s6), put(7, s7);
}

void add_gram_to(const float* lines, std::size_t stride, std::size_t count, std::size_t n, double* gram, double* work) {
  static_assert(kGramTile == 8);
  const auto side = gram_side(n), lanes = hn::Lanes(Wide());
  for (std::size_t line = 0; line < count; line += kGramLines) {
    const auto some = std::min(kGramLines, count - line);
    widen_lines(lines + line * stride, stride, some, n, work);
    for (std::size_t row = 0; row < side; row += kGramTile) {
      for (std::size_t column = 0; column < row + kGramTile; column += lanes) {
        add_tile(work, side, some, row, column, gram);
      }
    }
  }
}

}  // namespace
}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::kernels {

HWY_EXPORT(add_gram_to);

void add_gram(const float* lines, std::size_t stride, std::size_t count, std::size_t n, double* gram, double* work) {
  HWY_DYNAMIC_DISPATCH(add_gram_to)(lines, stride, count, n, gram, work);
}

}  // namespace spillway::kernels
#endif  // HWY_ONCE
