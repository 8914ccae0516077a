// Plans that fit: the same model at other budgets, sequences and batches. Pure, as the planner.
#pragma once

#include <cstdint>
#include <optional>
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

/// Tokens per second of plans; 0: it does not fit.
struct FitTable {
  std::vector<Bytes> dram_budgets = {};        ///< a half of the budget, the budget, twice as much
  std::vector<std::uint64_t> sequences = {};   ///< from a half to four times
  std::vector<std::uint64_t> batches = {};     ///< from a half to twice
  std::vector<double> tokens_per_second = {};  ///< by budget, then sequence, then batch
};

/// A step that accumulates one micro-batch more in each process.
struct LongerStep {
  bool fits = false;
  std::optional<double> predicted_step_seconds = {}, tokens_per_second = {};  ///< none: it does not fit
};

/// The plan with a GiB more for layers to keep what autograd saves of them.
struct LargerMemory {
  std::string tier;  ///< that has the GiB: "device" or "dram"
  std::uint64_t keep = 0, spill = 0;
  double predicted_step_seconds = 0;
};

struct Fits {
  /// For which there is a plan at this batch, a multiple of 64 (of a shorter one that the dry run had), at most 4 times
  /// that of the dry run; 0: none.
  std::uint64_t longest_sequence = 0;
  FitTable fit_table = {};
  LongerStep a_micro_batch_more = {};
  std::optional<LargerMemory> a_gib_more = {};  ///< none: no layer can keep what autograd saves of it
};

/// Plans on up to four threads; the result is the same on any number. Throws Error(bad_input) for a request without
/// tokens.
[[nodiscard]] Fits find_fits(const FitRequest& request);

}  // namespace spillway::plan
