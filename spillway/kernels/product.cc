#include "spillway/kernels/product.h"

#include <algorithm>

#include "spillway/kernels/bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spillway/kernels/product.cc"
#include <hwy/foreach_target.h>

#include "spillway/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {
namespace {

using Lane = hn::CappedTag<float, 16>;

/// Rows of the result whose sums are in registers at once, two vectors of each.
constexpr std::size_t kRows = 6;
/// Columns of `b` that lie together: [panel][depth][kPanel].
constexpr std::size_t kPanel = 32;
static_assert(kProductTile % kRows == 0 && kProductTile % kPanel == 0);

HWY_INLINE void widen_some(const std::uint16_t* from, std::size_t n, float* to) {
  const Lane d;
  const Half<Lane> half;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto words = hn::ShiftLeft<16>(hn::PromoteTo(Bits<Lane>(), hn::LoadU(half, from + i)));
    hn::StoreU(hn::BitCast(d, words), d, to + i);
  }
  for (; i < n; ++i) to[i] = kernels::widen(from[i]);
}

/// `rows` rows and zeros behind them: [kProductTile][kProductDepth].
HWY_INLINE void take_a(const Product& p, std::size_t row, std::size_t rows, std::size_t first, std::size_t n,
                       float* to) {
  for (std::size_t i = 0; i < kProductTile; ++i, to += kProductDepth) {
    if (i < rows) {
      widen_some(p.a + (row + i) * p.a_stride + first, n, to);
    } else {
      std::fill_n(to, n, 0.0F);
    }
  }
}

HWY_INLINE void take_b(const Product& p, std::size_t column, std::size_t columns, std::size_t first, std::size_t n,
                       float* to) {
  for (std::size_t panel = 0; panel < kProductTile; panel += kPanel, to += kProductDepth * kPanel) {
    const auto some = columns > panel ? std::min(kPanel, columns - panel) : 0;
    for (std::size_t k = 0; k < n; ++k) {
      widen_some(p.b + (first + k) * p.b_stride + column + panel, some, to + k * kPanel);
      std::fill_n(to + k * kPanel + some, kPanel - some, 0.0F);
    }
  }
}

/// Adds to kRows rows, two vectors of columns.
HWY_INLINE void add_rows(const float* a, const float* b, std::size_t n, float* sums) {
  static_assert(kRows == 6);
  const Lane d;
  const std::size_t lanes = hn::Lanes(d);
  const auto at = [=](std::size_t i, std::size_t half)
                      HWY_ATTR { return hn::LoadU(d, sums + i * kProductTile + half * lanes); };
  // One array each would keep its vectors in memory.
  auto s00 = at(0, 0), s01 = at(0, 1), s10 = at(1, 0), s11 = at(1, 1), s20 = at(2, 0), s21 = at(2, 1);
  auto s30 = at(3, 0), s31 = at(3, 1), s40 = at(4, 0), s41 = at(4, 1), s50 = at(5, 0), s51 = at(5, 1);
  for (std::size_t k = 0; k < n; ++k) {
    const auto x = hn::LoadU(d, b + k * kPanel), y = hn::LoadU(d, b + k * kPanel + lanes);
    const auto of = [=](std::size_t i) HWY_ATTR { return hn::Set(d, a[i * kProductDepth + k]); };
    const auto a0 = of(0), a1 = of(1), a2 = of(2), a3 = of(3), a4 = of(4), a5 = of(5);
    s00 = fused(d, a0, x, s00), s01 = fused(d, a0, y, s01), s10 = fused(d, a1, x, s10);
    s11 = fused(d, a1, y, s11), s20 = fused(d, a2, x, s20), s21 = fused(d, a2, y, s21);
    s30 = fused(d, a3, x, s30), s31 = fused(d, a3, y, s31), s40 = fused(d, a4, x, s40);
    s41 = fused(d, a4, y, s41), s50 = fused(d, a5, x, s50), s51 = fused(d, a5, y, s51);
  }
  const auto put = [=](std::size_t i, Vec<Lane> first, Vec<Lane> second) HWY_ATTR {
    hn::StoreU(first, d, sums + i * kProductTile);
    hn::StoreU(second, d, sums + i * kProductTile + lanes);
  };
  put(0, s00, s01), put(1, s10, s11), put(2, s20, s21), put(3, s30, s31), put(4, s40, s41), put(5, s50, s51);
}

void give(const Product& p, std::size_t row, std::size_t rows, std::size_t column, std::size_t columns,
          const float* sums) {
  for (std::size_t i = 0; i < rows; ++i) {
    const auto* const own = sums + i * kProductTile;
    const auto at = (row + i) * p.stride + column;
    for (std::size_t j = 0; j < columns; ++j) {
      float value = own[j] * p.alpha;
      if (p.add != nullptr) value += p.beta * kernels::widen(p.add[at + j]);
      const auto rounded = kernels::round_bf16(value);
      p.out[at + j] = rounded;
      if (p.turned != nullptr) p.turned[(column + j) * p.turned_stride + row + i] = rounded;
    }
  }
}

void tile(const Product& p, std::size_t row, std::size_t column, float* work) {
  float* const a = work;
  float* const b = a + kProductTile * kProductDepth;
  float* const sums = b + kProductTile * kProductDepth;
  const auto rows = std::min(kProductTile, p.rows - row), columns = std::min(kProductTile, p.columns - column);
  const std::size_t step = 2 * hn::Lanes(Lane());
  std::fill_n(sums, kProductTile * kProductTile, 0.0F);
  for (std::size_t first = 0; first < p.depth; first += kProductDepth) {
    const auto n = std::min(kProductDepth, p.depth - first);
    take_a(p, row, rows, first, n, a);
    take_b(p, column, columns, first, n, b);
    for (std::size_t j = 0; j < columns; j += step) {
      const float* const panel = b + j / kPanel * kProductDepth * kPanel + j % kPanel;
      for (std::size_t i = 0; i < rows; i += kRows) {
        add_rows(a + i * kProductDepth, panel, n, sums + i * kProductTile + j);
      }
    }
  }
  give(p, row, rows, column, columns, sums);
}

}  // namespace
}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::kernels {

HWY_EXPORT(tile);

void multiply_tile(const Product& product, std::size_t row, std::size_t column, float* work) {
  HWY_DYNAMIC_DISPATCH(tile)(product, row, column, work);
}

}  // namespace spillway::kernels
#endif  // HWY_ONCE
