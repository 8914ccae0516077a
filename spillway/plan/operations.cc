#include "spillway/plan/operations.h"

#include <algorithm>

namespace spillway::plan {
double attention_seconds(const PassOperations& pass, const ComputeRates& rates) {
  double out = 0;
  for (const auto& it : pass.attention) {
    out += it.calls * it.operations / rates.attention(it.tokens, it.backward, it.head_size);
  }
  return out;
}

double seconds_of(const PassOperations& pass, const ComputeRates& rates) {
  const auto calls = pass.calls * rates.call_seconds();
  double out = 0;
  for (const auto& it : pass.products) {
    const auto operations = 2 * it.tokens * it.inner * it.outer;
    out += it.calls * operations / rates.product(it.product, it.tokens, it.inner, it.outer);
  }
  out += attention_seconds(pass, rates);
  for (const auto& it : pass.elements) {
    out += it.calls * rates.operation_seconds(it.operation, it.strided, it.bytes);
  }
  return rates.runs_behind() ? std::max(out, calls) : out + calls;
}

double seconds_of(const TracedPasses& passes, const std::string& kind, double micro_batches,
                  const ComputeRates& rates) {
  const auto pass = passes.find(kind);
  if (pass == passes.end()) return 0;
  return micro_batches * seconds_of(pass->second.each, rates) + seconds_of(pass->second.once, rates);
}

}  // namespace spillway::plan
