// Operations of the passes of one micro-batch: a trace of a model's own code, run over shapes alone
// (python/spillway/model/measure/trace.py). With the rates of a profile it gives the seconds of each kind of pass.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "spillway/plan/compute_rates.h"

namespace spillway::plan {

/// Products of that shape, as a linear layer has them.
struct ProductCalls {
  Product product = Product::forward;
  double tokens = 0, inner = 0, outer = 0;
  double calls = 1;
};

/// Calls of attention over rows of so many tokens.
struct AttentionCalls {
  double tokens = 0, head_size = 0;
  double operations = 0;  ///< floating point operations of one, those that a mask leaves
  bool backward = false;
  double calls = 1;
};

/// Calls of an operation that is bound by memory.
struct ElementCalls {
  std::string operation;  ///< as machine::OperationRate has it
  bool strided = false;
  double bytes = 0;  ///< of one
  double calls = 1;
};

/// One pass.
struct PassOperations {
  std::vector<ProductCalls> products;
  std::vector<AttentionCalls> attention;
  std::vector<ElementCalls> elements;
  double calls = 0;  ///< of all operations, those that make views among them
};

/// The operations of a kind of pass ("forward", "kept_backward", "between", ...).
struct TracedPass {
  PassOperations each;  ///< for each micro-batch
  PassOperations once;  ///< for all of them together: packed or narrower weights are converted
};

using TracedPasses = std::map<std::string, TracedPass>;

/// Seconds of one such pass: operations over their rates, one after the other, and what every call takes besides. On a
/// GPU, which computes behind the calls, the longer of both.
[[nodiscard]] double seconds_of(const PassOperations& pass, const ComputeRates& rates);

/// The part of that which attention takes.
[[nodiscard]] double attention_seconds(const PassOperations& pass, const ComputeRates& rates);

/// Seconds of a kind of pass over so many micro-batches; 0 where there is none.
[[nodiscard]] double seconds_of(const TracedPasses& passes, const std::string& kind, double micro_batches,
                                const ComputeRates& rates);

}  // namespace spillway::plan
