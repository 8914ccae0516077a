#include "spillway/subspace/projector.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "spillway/base/error.h"
#include "spillway/kernels/random.h"

namespace spillway::subspace {
namespace {

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

}  // namespace

Projector::Projector(std::size_t rows, std::size_t columns, std::size_t nonzeros, Places places)
    : rows_(rows), columns_(columns), nonzeros_(nonzeros) {
  if (nonzeros == 0 || columns == 0 || nonzeros > columns || columns % nonzeros != 0 || columns > rows) {
    throw Error(ErrorCode::bad_input,
                text("a projector of ", rows, " rows, lsp_rank ", columns, " and lsp_nonzeros ", nonzeros,
                     "; lsp_nonzeros must be 1 to lsp_rank and divide it, and lsp_rank at most the rows"));
  }
  values_.resize(nonzeros * view().stride());
  if (places == Places::scattered) places_.resize(values_.size());
}

Projector Projector::random(const Projector& shape, std::uint64_t seed, std::uint64_t tensor, std::uint64_t refit,
                            unsigned side) {
  const auto r = shape.nonzeros();
  Projector out(shape.rows(), shape.columns(), r, shape.is_scattered() ? Places::scattered : Places::blocks);
  const kernels::RandomKey key(seed ^ (tensor * 2 + side + 1) * 0x9E3779B97F4A7C15, static_cast<std::int64_t>(refit));
  const double deviation = 1 / std::sqrt(static_cast<double>(r));
  std::vector<std::uint32_t> places(shape.is_scattered() ? r : 0);
  for (std::size_t i = 0; i < out.rows(); ++i) {
    auto index = i * (2 * r + places.size());
    draw_places(key, index, shape.columns(), places);
    for (std::size_t s = 0; s < places.size(); ++s) out.places_[s * out.view().stride() + i] = places[s];
    index += places.size();
    for (std::size_t s = 0; s < r; ++s) out.set(i, s, static_cast<float>(deviation * normal(key, index + 2 * s)));
  }
  return out;
}

}  // namespace spillway::subspace
