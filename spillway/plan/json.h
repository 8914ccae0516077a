// Descriptions, budgets and rates as JSON, as files hold them.
#pragma once

#include <string>

#include "spillway/machine/profile.h"
#include "spillway/plan/description.h"

namespace spillway::plan {

/// {"compute_dtype", "hidden_size", "micro_batches", "tokens", "tied_head", "blocks": [{"name", "role", "tensors":
/// [{"name", "shape", "decay"}]}], optional "accumulation", "chunk_elements", "optimizer", "state_format", "seed",
/// "virtual_ranks"}.
/// Error(bad_input) names the key.
[[nodiscard]] Description parse_description(const std::string& text);
/// The reverse, for the file that a run keeps.
[[nodiscard]] std::string to_json(const Description& description);

/// {"dram_budget", "process_bytes", "work_bytes", "keeps_logits", "saved_activations": {"blocks", "token_bytes",
/// "on_device", "layers", "keep", "why", "spill", "spilled_token_bytes", "graph_token_bytes"} (SavedActivations),
/// "window", "placement": {"weight", "state", "grad", "activation"} (shares in memory; the last two may name a tier of
/// host memory, such as "numa:2", for all of it), "storage": [{"directory", "capacity"}], "nodes": [{"id",
/// "capacity"}], "resumes"}; missing = 0, false or the planner's choice.
[[nodiscard]] Budget parse_budget(const std::string& text);

/// {"seconds": {"forward", "backward", "kept_forward", "kept_backward", "head_loss", "head_gradient", "tail_forward",
/// "tail_backward", "between"}} of a dry run (without kept ones backward is taken to spare a forward pass), {"nodes":
/// [{"id", "update", "update_thread", "read"}]} (NodeRates), {"device": {"to_device", "from_device", "links"}}, the
/// links as a profile's GPU has them, and {"near"}, the NUMA node of the device, with
/// {"storage": [{"far", "node"}]}, beside the machine's own rates; missing = unknown.
[[nodiscard]] Rates parse_rates(const std::string& text, const machine::Profile& profile);

}  // namespace spillway::plan
