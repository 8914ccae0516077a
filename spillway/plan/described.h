// A machine that a profile describes, told to the engine's planner in the words in which this machine is told to it.
#pragma once

#include <cstdint>
#include <optional>

#include "spillway/machine/profile.h"
#include "spillway/plan/description.h"
#include "spillway/plan/operations.h"
#include "spillway/plan/settings.h"

namespace spillway::plan {

/// A trace of fewer tokens than a micro-batch has.
struct FewTokens {
  double tokens = 1;
  TracedPasses passes = {};
  double most_seconds = 0;  ///< of all tokens at this speed, from which on Trace::brief_slack does not hold
};

/// A trace of the model's own code.
struct Trace {
  TracedPasses passes = {};
  double bytes = 0;        ///< of tensors at their peak
  double per_token = 0;    ///< by which they grow
  double slack = 1;        ///< by which they are multiplied
  double brief_slack = 1;  ///< by which they are where a plan on the machine itself would measure briefly
  FewTokens few = {};
};

/// Work of one micro-batch.
struct StepWork {
  std::uint64_t sequence = 1, batch = 1;               ///< tokens of a row, rows
  std::uint64_t query = 1, key = 1, feed_forward = 1;  ///< widths
  std::optional<Trace> trace = {};                     ///< empty: work is derived from shapes
  /// Bytes of images beside the working set, in host memory and in the memory of a GPU that computes.
  Bytes host_bytes = 0, device_bytes = 0;
};

/// The request to a described machine.
struct MachineRequest {
  /// "dram_budget" of 0: what may be taken there less a tenth. "nodes", if there are any, are used and no others.
  EngineSettings settings;
  StepWork work;
  Bytes gpu_memory = 0;  ///< 0: the profile's
  bool gpu = true;       ///< false: the CPUs compute although there is a GPU
  double simulated = 0;  ///< share of "dram_budget" that a simulated device has, unless `gpu_memory` says it; 0: none
};

/// Inputs of an engine's planner, and what follows from them.
struct DescribedMachine {
  EngineSettings settings;       ///< its profile has what other entries say of what it lacks
  double work_per_token = 0;     ///< bytes by which the working set grows
  double attention_seconds = 0;  ///< of a step; 0 without a trace
};

/// The settings that an engine plans with for the machine of a profile: those of the request, and beside them what is
/// measured of this machine and derived for another. "storage", "nodes" and, of the first GPU, "device": the profile's;
/// "seconds" and "work_bytes": by rates and shapes (derived.h). Where there is a trace, the working set is that of its
/// tensors; and where the profile says how fast operations are one by one, seconds are theirs (operations.h), of passes
/// that keep what autograd saves, too.
///
/// Where the description is of one process among several, the machine is divided by the processes on it
/// (process_share.h), "nodes" are not asked for, and "network_inside" is the rate between them.
///
/// Throws Error(bad_input) for a machine without a rate that a step needs, or a node that it does not have, and
/// Error(does_not_fit) for more of a node than there is.
[[nodiscard]] DescribedMachine describe_machine(const Description& description, const MachineRequest& request,
                                                const machine::Profile& profile);

}  // namespace spillway::plan
