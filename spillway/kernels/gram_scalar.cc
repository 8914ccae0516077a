#include "spillway/kernels/gram.h"

namespace spillway::kernels::scalar {

void add_gram(const float* lines, std::size_t stride, std::size_t count, std::size_t n, double* gram) {
  for (std::size_t line = 0; line < count; ++line) {
    const float* const x = lines + line * stride;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = 0; k <= i; ++k) gram[i * gram_side(n) + k] += static_cast<double>(x[i]) * x[k];
    }
  }
}

}  // namespace spillway::kernels::scalar
