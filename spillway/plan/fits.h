// Plans that fit: the same model at other budgets, sequences and batches. Pure, as the planner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/plan/planner.h"

namespace spillway::plan {

/// A step that a dry run has profiled, and how what it takes changes with the tokens of a micro-batch: time in
/// proportion, memory by the line through two dry runs. (Attention's part that is quadratic in the sequence is left
/// out.)
struct FitRequest {
  Description description;
  Budget budget;
  Rates rates;
  std::uint64_t sequence = 0, batch = 0;            ///< tokens of a row and rows of a micro-batch that `rates` are for
  double work_per_token = 0, device_per_token = 0;  ///< bytes of Budget::work and DeviceTier::work
  const Plan* planned = nullptr;                    ///< what the planner says of all that; null: it is asked
};

/// {"longest_sequence": for which there is a plan at this batch, a multiple of 64 (of a shorter one that the dry run
/// had), at most 4 times that of the dry run; 0: none, "fit_table": {"dram_budgets": the budget, a half and twice as
/// much, "sequences": from a half to four times, "batches": from a half to twice, "tokens_per_second": by budget, then
/// sequence, then batch; 0 where there is no plan}, "a_micro_batch_more": {"fits", "predicted_step_seconds",
/// "tokens_per_second"}: of a step that accumulates once more, and where layers can keep what autograd saves of them
/// "a_gib_more": {"tier", "keep", "predicted_step_seconds"}: the plan with a GiB more for that}. Plans on up to four
/// threads; the result is the same on any number. Throws Error(bad_input) for a request without tokens.
[[nodiscard]] std::string fits_json(const FitRequest& request);

}  // namespace spillway::plan
