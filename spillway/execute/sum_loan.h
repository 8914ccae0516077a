// An fp32 sum of a gradient, lent to the caller of a backward pass, whose matrix product adds to it.
#pragma once

#include <span>

namespace spillway::execute {

struct SumLoan {
  std::span<float> sum;  ///< the whole tensor's, in the memory that passes compute in
  bool first = false;    ///< the product overwrites the sum, which holds arbitrary bytes
};

}  // namespace spillway::execute
