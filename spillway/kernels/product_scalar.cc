#include <cmath>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/product.h"

namespace spillway::kernels::scalar {

void multiply(const Product& p) {
  for (std::size_t i = 0; i < p.rows; ++i) {
    for (std::size_t j = 0; j < p.columns; ++j) {
      float sum = 0;
      for (std::size_t k = 0; k < p.depth; ++k)
        sum = std::fma(widen(p.a[i * p.a_stride + k]), widen(p.b[k * p.b_stride + j]), sum);
      sum *= p.alpha;
      if (p.add != nullptr) sum += p.beta * widen(p.add[i * p.stride + j]);
      p.out[i * p.stride + j] = round_bf16(sum);
      if (p.turned != nullptr) p.turned[j * p.turned_stride + i] = round_bf16(sum);
    }
  }
}

}  // namespace spillway::kernels::scalar
