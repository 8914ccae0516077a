#include "spillway/subspace/projector.h"

#include <cmath>
#include <numbers>

#include "spillway/base/error.h"
#include "spillway/kernels/random.h"

namespace spillway::subspace {

Projector::Projector(std::size_t rows, std::size_t columns, std::size_t nonzeros)
    : rows_(rows), columns_(columns), nonzeros_(nonzeros) {
  if (nonzeros == 0 || columns == 0 || nonzeros > columns || columns % nonzeros != 0 || columns > rows) {
    throw Error(ErrorCode::bad_input,
                text("a projector of ", rows, " rows, lsp_rank ", columns, " and lsp_nonzeros ", nonzeros,
                     "; lsp_nonzeros must be 1 to lsp_rank and divide it, and lsp_rank at most the rows"));
  }
  values_.resize(nonzeros * view().stride());
}

Projector Projector::random(const Projector& shape, std::uint64_t seed, std::uint64_t tensor, std::uint64_t refit,
                            unsigned side) {
  Projector out(shape.rows(), shape.columns(), shape.nonzeros());
  const kernels::RandomKey key(seed ^ (tensor * 2 + side + 1) * 0x9E3779B97F4A7C15, static_cast<std::int64_t>(refit));
  const double deviation = 1 / std::sqrt(static_cast<double>(shape.nonzeros()));
  for (std::size_t i = 0; i < out.rows(); ++i) {
    for (std::size_t s = 0; s < out.nonzeros(); ++s) {
      // Box and Muller: two uniform numbers, one of them never 0.
      const auto index = 2 * (i * out.nonzeros() + s);
      const double radius = (kernels::scalar::random(key, index) + 1.0) * 0x1p-32;
      const double angle = kernels::scalar::random(key, index + 1) * 0x1p-32 * 2 * std::numbers::pi;
      out.set(i, s, static_cast<float>(deviation * std::sqrt(-2 * std::log(radius)) * std::cos(angle)));
    }
  }
  return out;
}

}  // namespace spillway::subspace
