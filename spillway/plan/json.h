// Descriptions as JSON, as files hold them.
#pragma once

#include <string>

#include "spillway/plan/description.h"

namespace spillway::plan {

/// {"compute_dtype", "hidden_size", "micro_batches", "tokens", "tied_head", "blocks": [{"name", "role", "tensors":
/// [{"name", "shape", "decay"}]}], optional "accumulation", "chunk_elements", "optimizer", "state_format", "seed",
/// "virtual_ranks"}.
/// Error(bad_input) names the key.
[[nodiscard]] Description parse_description(const std::string& text);
/// The reverse, for the file that a run keeps.
[[nodiscard]] std::string to_json(const Description& description);

}  // namespace spillway::plan
