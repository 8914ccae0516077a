// A machine that a profile describes, told to the engine's planner in the words in which this machine is told to it.
#pragma once

#include <string>

#include "spillway/machine/profile.h"
#include "spillway/plan/description.h"

namespace spillway::plan {

/// Inputs of an engine's planner.
struct DescribedMachine {
  std::string settings;      ///< JSON, for parse_budget() and, with `profile`, for parse_rates()
  machine::Profile profile;  ///< with what its other entries say of what it lacks
};

/// The settings that an engine plans with (parse_budget(), parse_rates()) for the machine of a profile, as JSON: what
/// `settings` says, and beside it what is measured of this machine and derived for another. "dram_budget": where it is
/// 0, what may be taken there less a tenth; "storage", "nodes" and, of the first GPU, "device": the profile's;
/// "seconds" and "work_bytes": by rates and shapes (derived.h), with "work_per_token", by which the working set grows.
/// Where "work" has a trace of the model's own code, the working set is that of its tensors; and where the profile says
/// how fast operations are one by one, seconds are theirs (operations.h), of passes that keep what autograd saves, too,
/// and "attention_seconds" those of a step that attention takes (0 without a trace).
///
/// `settings` has {"work": {"sequence", "batch", "query", "key", "feed_forward", and of a trace "passes"
/// (parse_operations()), "bytes" of tensors at their peak, "per_token" of them, "slack" and "brief_slack" by which they
/// are multiplied, and "few": {"tokens", "passes", "most_seconds"}: a trace of fewer tokens, by whose seconds for all
/// tokens it is the latter}} beside those of parse_budget(), and optional "nodes": [{"id", "capacity"}], which are used
/// and no others; "gpu": false where the CPUs compute although there is a GPU; "gpu_memory"; and "simulated":
/// that share of "dram_budget" is the memory of a simulated device, unless "gpu_memory" says it.
///
/// Where the description is of one process among several, the machine is divided by the processes on it
/// (process_share.h), "nodes" are not asked for, and "network_inside" is the rate between them.
///
/// Throws Error(bad_input) for a machine without a rate that a step needs, or a node that it does not have, and
/// Error(does_not_fit) for more of a node than there is.
[[nodiscard]] DescribedMachine describe_machine(const Description& description, const std::string& settings,
                                                const machine::Profile& profile);

}  // namespace spillway::plan
