// A verification says whether every byte that a run would use again is the one that was written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "spillway/execute/run_plan.h"
#include "spillway/execute/volumes.h"

namespace spillway::execute {

/// Bytes that are not those that were written.
struct Damage {
  std::string path;  ///< "path:0"
  std::filesystem::path file;
  Bytes offset = 0, bytes = 0;  ///< in the file
  std::string what;             ///< "exp_avg of model.layers.3.mlp.up_proj.weight (chunk 17) of step 12"
};

struct Verification {
  Bytes bytes = 0;                    ///< read
  std::optional<std::uint64_t> step;  ///< the newest durable one
  std::vector<Damage> damage;
};

/// Reads superblocks, records, the newest durable step and what replays it, and the checkpoints whose manifests are in
/// `pinned`. Damage is told, not thrown. Throws Error(bad_input) when there is no volume of the run.
[[nodiscard]] Verification verify(const RunPlan& plan, VolumeSettings volumes,
                                  const std::vector<std::filesystem::path>& pinned);

}  // namespace spillway::execute
