// The plan for a machine that a profile describes: where everything lives, how long a step takes, what bounds it, what
// would help, what fits. Pure, and nothing is rehearsed: compute takes what the profile's rates say.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "spillway/plan/device_step.h"
#include "spillway/plan/fits.h"
#include "spillway/plan/planner.h"
#include "spillway/plan/subspace_share.h"

namespace spillway::plan {

struct DeviceRequest {
  Hardware hardware;
  ModelSizes model;
  DeviceWork work;
  DeviceBudget budget;
  SubspaceShare subspaces = {};
  std::optional<ModelSizes> model_in_full = {};  ///< of what learns in subspaces, were it to learn in full
};

struct DevicePlan {
  DevicePlacement placement;
  DeviceStep step;
  double tokens_per_second = 0;             ///< of all devices
  std::string bottleneck, next_bottleneck;  ///< names of resources; by the time that each needs alone
};

/// The fastest of the placements tried by simulating them. Throws Error(does_not_fit), Error(bad_input) for a machine
/// without a rate that the step needs.
[[nodiscard]] DevicePlan plan_for(const DeviceRequest& request);

/// The same, were everything to learn in full; empty where nothing learns in a subspace.
[[nodiscard]] std::optional<InFull> plan_in_full(const DeviceRequest& request);

/// Whether there is a plan at all; simulates nothing.
[[nodiscard]] bool fits(const DeviceRequest& request);

/// Longest sequence, a multiple of 128, for which there is a plan at this batch; 0 = none. At most 2^24.
[[nodiscard]] std::uint64_t longest_sequence(DeviceRequest request);

/// What a change of the machine or the work would do.
struct Change {
  std::string what;
  double seconds = 0;  ///< of the step then; 0: it does not fit
  double tokens_per_second = 0;
};
/// One more GiB of DRAM, drive, CXL card and device of the kinds there are, and twice the sequence.
[[nodiscard]] std::vector<Change> changes(const DeviceRequest& request);

/// A quarter, half and all of the DRAM; sequences from a quarter of this one on; 1, 4 and 16 rows.
[[nodiscard]] FitTable fit_table(const DeviceRequest& request);

/// As plan.json, with "what_if", "longest_sequence" and "fit_table" beside.
[[nodiscard]] std::string plan_json(const DeviceRequest& request);

}  // namespace spillway::plan
