#include "spillway/subspace/scattered.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "spillway/base/error.h"
#include "spillway/device/typed.h"
#include "spillway/kernels/project.h"
#include "spillway/kernels/random.h"

namespace spillway::subspace {
namespace {

using kernels::kTokenTile;

/// One of N(0, 1), of Box and Muller: two uniform numbers, one of them never 0.
double normal(const kernels::RandomKey& key, std::uint64_t index) {
  const double radius = (kernels::scalar::random(key, index) + 1.0) * 0x1p-32;
  const double angle = kernels::scalar::random(key, index + 1) * 0x1p-32 * 2 * std::numbers::pi;
  return std::sqrt(-2 * std::log(radius)) * std::cos(angle);
}

/// A number below `end`.
std::uint32_t below(const kernels::RandomKey& key, std::uint64_t index, std::uint64_t end) {
  return static_cast<std::uint32_t>(kernels::scalar::random(key, index) * end >> 32U);
}

/// Different numbers below `columns` (Floyd's sample).
void draw_places(const kernels::RandomKey& key, std::uint64_t index, std::size_t columns, std::span<std::uint32_t> to) {
  for (std::size_t s = 0; s < to.size(); ++s) {
    const auto last = static_cast<std::uint32_t>(columns - to.size() + s);
    const auto place = below(key, index + s, last + std::uint64_t{1});
    const auto before = to.first(s);
    to[s] = std::ranges::find(before, place) == before.end() ? place : last;
  }
}

void add_scaled(float factor, const float* from, float* to, std::size_t n) {
  for (std::size_t k = 0; k < n; ++k) to[k] += factor * from[k];
}

/// A tile of tokens as [rows][kTokenTile], zeros behind the last.
void turn_tokens(kernels::Element type, const std::byte* in, std::size_t stride, std::size_t tokens, std::size_t rows,
                 std::vector<float>& line, std::vector<float>& out) {
  std::ranges::fill(out, 0.0F);
  for (std::size_t t = 0; t < tokens; ++t) {
    device::widen(type, in + t * stride * traits(type).bytes, line.data(), rows);
    for (std::size_t i = 0; i < rows; ++i) out[i * kTokenTile + t] = line[i];
  }
}

}  // namespace

Scattered::Scattered(std::size_t rows, std::size_t columns, std::size_t nonzeros)
    : rows_(rows), columns_(columns), nonzeros_(nonzeros) {
  if (nonzeros == 0 || columns == 0 || nonzeros > columns || columns % nonzeros != 0 || columns > rows) {
    throw Error(ErrorCode::bad_input,
                text("a projector of ", rows, " rows, lsp_rank ", columns, " and lsp_nonzeros ", nonzeros,
                     "; lsp_nonzeros must be 1 to lsp_rank and divide it, and lsp_rank at most the rows"));
  }
  values_.resize(rows * nonzeros);
  places_.resize(rows * nonzeros);
}

Scattered Scattered::random(const Scattered& shape, std::uint64_t seed, std::uint64_t tensor, std::uint64_t refit,
                            unsigned side) {
  auto out = shape;
  const kernels::RandomKey key(seed ^ (tensor * 2 + side + 1) * 0x9E3779B97F4A7C15, static_cast<std::int64_t>(refit));
  const auto r = shape.nonzeros();
  const double deviation = 1 / std::sqrt(static_cast<double>(r));
  for (std::size_t i = 0; i < shape.rows(); ++i) {
    draw_places(key, 3 * i * r, shape.columns(), std::span(out.places_).subspan(i * r, r));
    for (std::size_t s = 0; s < r; ++s) {
      out.values_[i * r + s] = static_cast<float>(deviation * normal(key, 3 * i * r + r + 2 * s));
    }
  }
  return out;
}

std::vector<float> Scattered::pack() const {
  auto out = values_;
  out.insert(out.end(), places_.begin(), places_.end());
  return out;
}

void Scattered::unpack(std::span<const float> packed) {
  const auto n = values_.size();
  const auto fits = [&](float place) { return place >= 0 && place < static_cast<float>(columns_); };
  if (packed.size() != 2 * n || !std::ranges::all_of(packed.subspan(n), fits)) {
    throw Error(ErrorCode::bad_input,
                text(packed.size(), " values for a projector of ", rows_, " rows with ", nonzeros_,
                     " of each at random places: another weight's, or another lsp_rank or lsp_nonzeros"));
  }
  std::ranges::copy(packed.first(n), values_.begin());
  std::ranges::transform(packed.subspan(n), places_.begin(),
                         [](float place) { return static_cast<std::uint32_t>(place); });
}

std::vector<float> reduce(const Scattered& r, std::span<const float> x, std::size_t width) {
  std::vector<float> out(r.columns() * width);
  for (std::size_t k = 0; k < r.values().size(); ++k) {
    add_scaled(r.values()[k], x.data() + k / r.nonzeros() * width, out.data() + r.places()[k] * width, width);
  }
  return out;
}

std::vector<float> expand(const Scattered& r, std::span<const float> x, std::size_t width) {
  std::vector<float> out(r.rows() * width);
  for (std::size_t k = 0; k < r.values().size(); ++k) {
    add_scaled(r.values()[k], x.data() + r.places()[k] * width, out.data() + k / r.nonzeros() * width, width);
  }
  return out;
}

std::vector<float> turn(std::span<const float> x, std::size_t rows, std::size_t columns) {
  constexpr std::size_t kSide = 32;  // squares of which both forms stay in the nearest cache
  std::vector<float> out(x.size());
  for (std::size_t top = 0; top < rows; top += kSide) {
    for (std::size_t left = 0; left < columns; left += kSide) {
      for (auto i = top; i < std::min(rows, top + kSide); ++i) {
        for (auto k = left; k < std::min(columns, left + kSide); ++k) out[k * rows + i] = x[i * columns + k];
      }
    }
  }
  return out;
}

void compress(const Scattered& r, kernels::Element type, const std::byte* in, std::size_t in_stride, std::size_t tokens,
              std::byte* out, std::size_t out_stride) {
  const auto bytes = traits(type).bytes;
  std::vector<float> line(r.rows()), tile(r.rows() * kTokenTile);
  for (std::size_t first = 0; first < tokens; first += kTokenTile) {
    const auto count = std::min(kTokenTile, tokens - first);
    turn_tokens(type, in + first * in_stride * bytes, in_stride, count, r.rows(), line, tile);
    const auto reduced = reduce(r, tile, kTokenTile);
    for (std::size_t c = 0; c < r.columns(); ++c) {
      (void)device::round_norm(type, reduced.data() + c * kTokenTile, out + (c * out_stride + first) * bytes, count);
    }
  }
}

}  // namespace spillway::subspace
