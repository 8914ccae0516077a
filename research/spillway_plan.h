// Spillway's own plan on a machine that a profile describes: by the engine's planner, as `spillway plan --profile`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spillway/machine/profile.h"
#include "spillway/plan/planner.h"

namespace spillway::research {

/// A weight of a layer, and how many of its kind.
struct LayerMatrix {
  std::int64_t outer = 0, inner = 0;
  unsigned count = 1;
  bool trained = true;
};

/// A decoder and one step of it.
struct PlannedModel {
  std::uint64_t layers = 1;
  std::int64_t hidden = 0, vocabulary = 0;
  std::vector<LayerMatrix> matrices;  ///< of a layer
  bool tied = false;
  bool tables_train = true;
  std::uint64_t query = 0, key = 0, feed_forward = 0;  ///< as plan::StepShape
  std::uint64_t sequence = 1024, batch = 1, micro_batches = 1;
  std::uint64_t rank = 0, nonzeros = 0, rotate = 0;  ///< of subspaces that trained matrices learn in; rank 0: in full
  Bytes dram = 0;                                    ///< 0: what the machine has
  std::optional<plan::Durability> durability = {};
  std::string format = "exact";  ///< of states
  std::uint64_t chunk_elements = state::kDefaultChunkElements;
  /// Tier of host memory, an index, that boundary activations lie on, none of them on the GPU; empty: the planner
  /// decides.
  std::optional<std::uint16_t> boundaries = {};
  /// Bytes that autograd saves of each token in a layer, which may stay on the GPU; 0: all layers recompute.
  double saved_token_bytes = 0;
  /// Layers that have it in host memory instead, on the tier that the planner chooses, while the others recompute.
  std::uint64_t spilling = 0;
};

/// Queries, keys, values, output, and a gated feed-forward.
[[nodiscard]] std::vector<LayerMatrix> llama_matrices(std::int64_t hidden, std::int64_t query, std::int64_t key,
                                                      std::int64_t feed_forward);

/// Where the profile says how many machines there are, the plan of one process among one on each GPU of each of them,
/// and `micro_batches` are each process's. Throws as plan::make_plan().
[[nodiscard]] plan::Plan spillway_plan(const machine::Profile& profile, const PlannedModel& model);

/// Bytes of host memory that the smallest plan takes, with everything on paths.
[[nodiscard]] Bytes least_host_memory(const machine::Profile& profile, const PlannedModel& model);

}  // namespace spillway::research
