// A plan as callers, files and people read it: values alone, whose fields have the names of plan.json
// (summary_fields.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "spillway/plan/planner.h"

namespace spillway::plan {

struct PlannedTier {
  std::string name;  ///< "dram", "numa:N", "file:N", "device", "path:N"
  Bytes capacity = 0;
  Bytes planned_peak = 0;
};

/// Bytes of one class on one tier.
struct PlannedBytes {
  std::string class_;  ///< "weight", "state", "grad", "activation", "working set", ...
  std::string tier;    ///< PlannedTier::name
  Bytes bytes = 0;
};

/// Bytes over the link of a device.
struct LinkBytes {
  Bytes to_device = 0, from_device = 0;
};

/// Bytes of a storage path.
struct PathBytes {
  Bytes read = 0, written = 0;
};

/// Bytes to and from other processes.
struct NetworkBytes {
  Bytes sent = 0, received = 0;
};

/// Seconds of a step by which spilling a layer is decided.
struct SpillSeconds {
  double paths = 0;      ///< of all paths, both ways
  double copy = 0;       ///< of compute
  double recompute = 0;  ///< of compute, where the layer recomputes instead
};

/// Activations that autograd saves of layers.
struct PlannedActivations {
  std::uint64_t layers = 0;                    ///< of the model
  std::uint64_t keep = 0;                      ///< layers that keep them
  std::vector<Index> blocks = {};              ///< of these layers
  Bytes bytes = 0;                             ///< at most, of all
  std::string tier;                            ///< where they lie
  std::optional<std::uint64_t> asked = {};     ///< layers that the caller asked to keep; none: the planner chose
  std::string why;                             ///< for people
  std::uint64_t spill = 0;                     ///< layers that spill them
  std::vector<Index> spilled_blocks = {};      ///< of these layers
  Bytes spilled_bytes = 0;                     ///< of all these layers, one way
  std::optional<std::string> spill_tier = {};  ///< where they go; none: no layer spills
  std::optional<std::string> spill_why = {};   ///< for people
  std::optional<SpillSeconds> seconds_of_a_layer = {};
};

/// Features of images, from the first layer's forward pass to its backward pass.
struct PlannedFeatures {
  Bytes bytes = 0;
  std::string tier;  ///< where they lie meanwhile; "paths": they are spilled
};

/// Blocks of layers, and slices of a head, by the work of the device with them.
struct PlannedBlocks {
  std::uint64_t state_and_update = 0;           ///< device-resident
  std::uint64_t streamed_state_and_update = 0;  ///< device-updated
  std::uint64_t weight = 0;                     ///< a copy of the weights stays there
  std::uint64_t streamed = 0;                   ///< weights come for every pass
  Bytes durable_bytes_per_step = 0;
  std::string why;                                               ///< for people
  std::optional<std::uint64_t> matrices_that_take_changes = {};  ///< whose copies there do; none: no copy does
};

/// One value of an axis, and the plan with it.
struct PlannedValue {
  std::string value;  ///< in words
  bool fits = false;
  bool chosen = false;
  std::optional<double> predicted_step_seconds = {};  ///< none: it does not fit
  std::optional<Bytes> bytes_per_step = {};           ///< moved; none: it does not fit
};

/// An axis of which values were compared (axes.h).
struct PlannedDecision {
  std::string name;
  std::string title;   ///< for people
  std::string reason;  ///< the tradeoff that makes it an axis
  std::vector<PlannedValue> compared = {};
};

struct RemotePath {
  std::string name;
  std::optional<unsigned> node = {};  ///< of the drive
};

/// Pieces that passes ask for (state::TensorSpec), by their first places.
struct PlannedPieces {
  std::uint64_t pieces = 0;     ///< of all tensors
  std::uint64_t in_memory = 0;  ///< host memory has them
  std::uint64_t on_device = 0;  ///< the device has them, or copies of them
};

/// Paths whose drives are by another NUMA node than the compute device.
struct RemotePaths {
  std::vector<RemotePath> paths = {};
  std::optional<double> seconds = {};  ///< of a step; none: unknown
  std::string why;                     ///< for people
};

/// Wear of a drive.
struct DriveLife {
  Bytes rated = 0;            ///< that may be written in its life
  bool assumed = false;       ///< nobody said it: a usual drive's
  Bytes written_per_day = 0;  ///< of training
  double days = 0;            ///< of training until `rated`
};

/// The file system of output_dir.
struct PlannedSaving {
  std::string file_system;
  Bytes free = 0;
  Bytes volumes = 0;           ///< of the paths there
  Bytes checkpoint_bytes = 0;  ///< of one
  Bytes weights = 0;           ///< of one: files of weights
  std::uint32_t checkpoints_at_once = 0;
  Bytes bytes = 0;  ///< most that saving takes
};

/// The same plan with every matrix trained in full.
struct FullPlan {
  double predicted_step_seconds = 0;
  double without_products_seconds = 0;  ///< the same, were the products of whole gradients free
  Bytes path_bytes_per_step = 0, device_bytes_per_step = 0;
};

/// Matrices whose gradients are reduced.
struct PlannedReduction {
  std::uint64_t matrices = 0, elements = 0;
  Bytes gradient_bytes = 0, gradient_bytes_in_full = 0;  ///< a step
  bool helps = false;                                    ///< a step is faster than in full
  std::optional<FullPlan> in_full = {};                  ///< none: it does not fit
};

/// Share of durability in a step.
struct DurabilityCost {
  Bytes written = 0;
  double seconds = 0;
};

struct PlannedUpdates {
  std::string asked;     ///< "auto", "deferred" or "early"
  std::string schedule;  ///< "deferred" or "early"
  std::uint64_t early_chunks = 0, chunks = 0;
  Bytes undo_bytes = 0;
  double seconds_saved = 0;
  bool speculative = false;
};

/// Seconds of a step by resource.
struct PlannedSeconds {
  double compute = 0, transfer = 0, update = 0, stall = 0;
  std::optional<double> to_device = {}, from_device = {}, device_update = {};  ///< none: there is no device
  std::optional<double> network = {};                                          ///< none: a world of one
};

/// Lookahead as plan.json has it.
struct PlannedLookahead {
  std::uint32_t state_read = 0, write = 0, weight_read = 0, backward = 0, grad_write = 0, head = 0;
  std::optional<std::uint32_t> device = {};  ///< none: there is no device
};

/// plan.json.
struct PlanSummary {
  bool fits = true;
  std::uint64_t parameters = 0, learning_parameters = 0;
  std::string weight_dtype, compute_dtype, optimizer, state_format;
  double bytes_per_parameter = 0;  ///< of weight and state
  std::uint64_t kept_logits = 0;   ///< slices of the head
  std::vector<PlannedTier> tiers = {};
  std::vector<PlannedBytes> bytes = {};
  std::optional<LinkBytes> device_bytes_per_step = {};                            ///< none: there is no device
  std::optional<std::map<std::string, std::uint64_t>> boundary_activations = {};  ///< number by tier
  std::optional<PlannedActivations> saved_activations = {};  ///< none: the caller did not describe them
  std::optional<PlannedFeatures> image_features = {};        ///< none: no features wait
  std::optional<PlannedBlocks> device_blocks = {};           ///< none: there is no device
  std::optional<PlannedPieces> pieces = {};                  ///< none: passes ask for no pieces
  std::vector<PlannedDecision> decisions = {};
  std::map<std::string, PathBytes> path_bytes_per_step = {};  ///< by path
  std::map<std::string, DriveLife> drive_life = {};           ///< by path that is written
  std::optional<RemotePaths> far_drives = {};                 ///< none: there are none
  std::optional<PlannedSaving> saving = {};                   ///< none: nobody knows what is saved
  std::optional<PlannedReduction> subspaces = {};             ///< none: nothing is reduced
  std::string durability;                                     ///< "none", "checkpoint" or "step"
  std::optional<DurabilityCost> durability_per_step = {};     ///< none: steps are not durable
  PlannedUpdates updates = {};
  double predicted_step_seconds = 0;
  std::optional<double> tokens_per_second = {};
  std::optional<std::uint64_t> world = {}, rank = {}, machines = {};  ///< none: a world of one. So below
  std::optional<Bytes> network_sent = {}, network_received = {};      ///< of this process, a step
  std::optional<NetworkBytes> between_machines = {};                  ///< of these
  std::optional<bool> own_weights = {};  ///< each process keeps in memory its own weights alone
  std::string bottleneck;
  PlannedSeconds seconds = {};
  PlannedLookahead lookahead = {};
};

[[nodiscard]] PlanSummary summarize(const Plan& plan, const Description& description, const state::Layout& layout,
                                    const Budget& budget);

}  // namespace spillway::plan
