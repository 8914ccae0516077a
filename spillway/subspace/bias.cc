#include "spillway/subspace/bias.h"

#include <algorithm>
#include <cmath>

#include "spillway/kernels/mean.h"
#include "spillway/kernels/random.h"

namespace spillway::subspace {

void draw_signs(std::uint64_t seed, std::uint64_t matrix, std::int64_t step, std::span<float> signs) {
  const kernels::RandomKey key(seed ^ (matrix + 1) * 0xD1B54A32D192ED03, step);
  for (std::size_t i = 0; i < signs.size(); i += 128) {
    const auto block = kernels::scalar::random_block(key, i / 128);
    for (std::size_t bit = 0; bit < 128 && i + bit < signs.size(); ++bit) {
      signs[i + bit] = (block[bit / 32] >> bit % 32 & 1) != 0 ? 1.0F : -1.0F;
    }
  }
}

void Bias::add(double s_square, double gz_square) noexcept {
  if (!std::isfinite(s_square) || !std::isfinite(gz_square)) return;
  captured = kernels::fold(captured, s_square, static_cast<double>(samples));
  whole = kernels::fold(whole, gz_square, static_cast<double>(samples));
  ++samples;
}

double Bias::error() const noexcept {
  return whole > 0 ? std::sqrt(std::max(0.0, 1 - captured / whole)) : 0;
}

}  // namespace spillway::subspace
