// The planner is told these values: the model, the work of a step, the budgets, and what was measured of the machine.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/base/error.h"
#include "spillway/optim/optimizers.h"
#include "spillway/plan/virtual_ranks.h"
#include "spillway/state/layout.h"
#include "spillway/state/ownership.h"
#include "spillway/state/rule.h"

namespace spillway::plan {

/// The model and the largest step it will be asked for.
struct Description {
  state::ComputeType weight_dtype = state::ComputeType::bf16;  ///< of weights and gradients, as they are kept and moved
  /// Type that passes multiply in. Weights are widened to it when a pass begins; activations and the gradients handed
  /// over have it. Empty: `weight_dtype`; else `weight_dtype` or fp32.
  std::optional<state::ComputeType> compute_dtype = {};
  const optim::Descriptor* optimizer = &optim::adamw;
  state::StateFormat state_format = state::StateFormat::exact;
  std::uint64_t seed = 0;                ///< of the run: what random numbers of updates are drawn from
  std::vector<state::BlockSpec> blocks;  ///< in order of execution: [embedding] layers... [head]
  bool tied_head = false;                ///< the embedding's table is the head's matrix, too
  std::uint64_t hidden_size = 0;         ///< elements of a boundary activation per token; 0 = no boundary activations
  std::uint64_t tokens = 0;              ///< most tokens of a step that this process computes, padding included
  std::uint64_t micro_batches = 1;       ///< most parts by which a step's gradients are summed, of all processes
  std::uint64_t accumulation = 0;        ///< most micro-batches of a step, of all processes; 0: one for each part
  std::uint64_t virtual_ranks = 1;       ///< > 0; into so many shards the state is cut, too
  state::World world = {};               ///< the processes of the run, and which of them this one is
  bool shard_frozen = false;             ///< one process keeps each frozen chunk, too, and sends it for every pass
  std::uint64_t step_tokens = 0;         ///< most tokens of a step, of all processes; 0: `tokens`
  std::uint64_t chunk_elements = state::kDefaultChunkElements;
  optim::RefitRule refits = {};  ///< of tensors that are reduced
  /// Features of images, of all micro-batches of the largest step that this process computes: bytes that the forward
  /// pass of the first layer makes and its backward pass reads.
  Bytes feature_bytes = 0;

  [[nodiscard]] constexpr state::ComputeType computes() const noexcept { return compute_dtype.value_or(weight_dtype); }
  /// True if layers multiply in a wider type than the type of the stored weights.
  [[nodiscard]] constexpr bool widens() const noexcept { return computes() != weight_dtype; }
  /// fp32 values beside each element of a gradient while it is summed over micro-batches: the sums of virtual ranks,
  /// the lowest of which lies where the gradient itself does when that is fp32.
  [[nodiscard]] constexpr unsigned gradient_sums() const noexcept {
    if (is_shared()) return most_sums(virtual_ranks, micro_batches, world.size);
    if (micro_batches < 2) return 0;
    return VirtualRanks(virtual_ranks, micro_batches).sums() - (traits(weight_dtype).rounds ? 0U : 1U);
  }
  /// fp32 values beside each row of a reduced matrix, whose samples are summed by themselves.
  [[nodiscard]] constexpr unsigned sample_sums() const noexcept {
    if (is_shared()) return most_sums(virtual_ranks, micro_batches, world.size);
    return VirtualRanks(virtual_ranks, micro_batches).sums();
  }
  /// True if several processes share the state.
  [[nodiscard]] constexpr bool is_shared() const noexcept { return world.size > 1; }
  /// Most parts of a step that this process computes, where each computes as many.
  [[nodiscard]] constexpr std::uint64_t count_own_micro_batches() const noexcept {
    return ceil_div(micro_batches, std::max<std::uint64_t>(1, world.size));
  }
  /// Most micro-batches of a step whose passes this process computes. Each has `count_own_tiles` parts.
  [[nodiscard]] constexpr std::uint64_t count_own_accumulation() const noexcept {
    return ceil_div(accumulation > 0 ? accumulation : micro_batches, std::max<std::uint64_t>(1, world.size));
  }
  /// Token tiles of a micro-batch, each a part of its own.
  [[nodiscard]] constexpr std::uint64_t count_own_tiles() const noexcept {
    return ceil_div(count_own_micro_batches(), count_own_accumulation());
  }
  /// Most tokens of a step, of all processes.
  [[nodiscard]] constexpr std::uint64_t all_tokens() const noexcept { return std::max(tokens, step_tokens); }
  /// True if one of several processes keeps the chunk and sends its weights to the passes of the others; else each one
  /// has it.
  [[nodiscard]] bool is_sent(const state::Chunk& chunk) const noexcept {
    return is_shared() && (shard_frozen || state::is_trainable(chunk.training));
  }
  /// The rank that keeps a chunk, and updates it if it is trained.
  [[nodiscard]] std::size_t owner(const state::Layout& layout, const state::Chunk& chunk) const noexcept {
    return is_sent(chunk) ? state::rank_of(chunk.shard, layout.shards(), world.size) : world.rank;
  }
  [[nodiscard]] bool has(const state::Layout& layout, const state::Chunk& chunk) const noexcept {
    return owner(layout, chunk) == world.rank;
  }
  /// One flag per chunk: true if each process has it.
  [[nodiscard]] std::vector<bool> replicated(const state::Layout& layout) const {
    std::vector<bool> out;
    for (const auto& chunk : layout.chunks()) out.push_back(!is_sent(chunk));
    return out;
  }
  [[nodiscard]] state::Ownership ownership(const state::Layout& layout) const {
    return is_shared() ? state::Ownership(layout, world, replicated(layout)) : state::Ownership(layout);
  }
  /// Rows of an embedding that this process keeps and updates.
  [[nodiscard]] std::uint64_t rows_of(const state::Layout& layout, const state::Block& table) const {
    std::uint64_t out = 0;
    for (auto c = table.first_chunk; c < table.first_chunk + table.chunks; ++c) {
      const auto& slice = layout.chunks()[c];
      out += has(layout, slice) ? slice.used / table.columns : 0;
    }
    return out;
  }
  /// True if the head's passes read the block: a head, or an embedding's table that is the head's matrix, too.
  [[nodiscard]] constexpr bool is_head(const state::Block& block) const noexcept {
    const auto& role = traits(block.role);
    return role.is_table && role.is_gathered == tied_head;
  }
  /// Null: there is none.
  [[nodiscard]] const state::Block* head(const state::Layout& layout) const {
    const auto at = std::ranges::find_if(layout.blocks(), [&](const state::Block& it) { return is_head(it); });
    return at == layout.blocks().end() ? nullptr : &*at;
  }
  /// Bytes of the activation between two layers, of all tokens of the largest step.
  [[nodiscard]] constexpr Bytes boundary_bytes() const noexcept {
    return tokens * hidden_size * state::field_bytes(computes()).weight;
  }
  /// Bytes of the index of packed rows: for each token the place of its row among those behind the index, 4 bytes each.
  /// Rows of one token id are there once, so that fewer bytes cross to a device.
  [[nodiscard]] constexpr Bytes row_index_bytes() const noexcept {
    return round_up(tokens * sizeof(std::uint32_t), 256);
  }
  [[nodiscard]] constexpr Bytes packed_rows_bytes() const noexcept { return row_index_bytes() + boundary_bytes(); }
  [[nodiscard]] constexpr state::UpdateRule rule() const noexcept { return {weight_dtype, optimizer, state_format}; }
  [[nodiscard]] state::Layout layout() const {
    return state::Layout(blocks, chunk_elements, rule().alignment(), weight_dtype, optimizer->scope, virtual_ranks);
  }
};

/// Share of each field group that stays in DRAM, 0 to 1; empty = the planner decides.
struct PlacementShares {
  std::optional<double> weight, state, grad, activation;
  /// The one tier of host memory that all gradients which stay there lie on, and all boundary activations: indices into
  /// Budget::nodes. Empty = the planner decides.
  std::optional<std::uint16_t> grad_on = {}, activation_on = {};
};

/// A storage path as the planner sees it.
struct PathBudget {
  std::string name = "path:0";
  Bytes capacity = 0;   ///< for everything that is kept there, superblock and records included
  bool remote = false;  ///< its drive is nearer to another NUMA node than the device: of equals the others come first
  std::optional<unsigned> node = {};    ///< that NUMA node
  std::optional<Bytes> endurance = {};  ///< what may be written to its drive in its life; empty: nobody said
};

/// Kind of a tier of host memory.
enum class NodeKind : std::uint8_t {
  numa,  ///< a NUMA node
  dram,  ///< memory that is not told apart, beside files; its capacity is Budget::dram
  file,  ///< a file that is mapped; Budget::dram does not count what it has
};

struct NodeTraits {
  const char* word;  ///< of its name and of settings
  bool is_rest;      ///< there is one, without a number, and its capacity is what Budget::dram has left for it
  bool in_dram;      ///< Budget::dram counts what it has
  bool is_numa;      ///< settings name it by the kernel's number, and a device's link to it has rates of its own
  const char* flag;  ///< that gives it room, before its number where settings have that
};

inline constexpr std::array<NodeTraits, 3> kNodes = {{
    {"numa", false, true, true, "--node "},
    {"dram", true, true, false, "--dram_budget"},
    {"file", false, false, false, "--memory_file DIR"},
}};

[[nodiscard]] constexpr const NodeTraits& traits(NodeKind kind) noexcept {
  return kNodes[static_cast<std::size_t>(kind)];
}

/// A tier of host memory as the planner sees it: a NUMA node, unless `kind` says otherwise.
struct NodeBudget {
  unsigned id = 0;     ///< of a node the kernel's number, of a file that among the files
  Bytes capacity = 0;  ///< for all that this process holds there
  NodeKind kind = NodeKind::numa;

  [[nodiscard]] std::string name() const {
    return traits(kind).is_rest ? traits(kind).word : text(traits(kind).word, ":", id);
  }
};

/// Copies of fewer bytes than this do not reach the bandwidth of a device's link (as device::kGoodCopy).
inline constexpr Bytes kGoodCopy = 8 * MiB;

/// A compute device with memory of its own, as the planner sees it.
struct DeviceTier {
  Bytes capacity = 0;                        ///< for all that this process holds there
  Bytes work = 0;                            ///< of it, PyTorch's working set
  bool in_dram = false;                      ///< its memory is the host's (a simulated device), and counts there, too
  std::optional<double> weight, activation;  ///< share that stays there; empty = the planner decides
  std::optional<double> state;               ///< share of the blocks that may live there and do; the same
  std::optional<double> device_updated;  ///< of the others that might, share whose state passes; empty: as many as are
                                         ///< fastest, or none where `state` is given
  std::optional<double> grad;            ///< of these, share whose gradients stay there; empty = the planner decides
  std::optional<bool> applies_changes;   ///< copies of reduced matrices take changes (can_take_change()); empty = the
                                         ///< planner decides
  Bytes coalesce_to = kGoodCopy;         ///< neighbours of a block are copied together until a copy has this many bytes
};

/// State on storage paths that survives a kill (docs/decisions/0001-durable-storage.md).
enum class Durability : std::uint8_t { none, checkpoint, step };

[[nodiscard]] constexpr const char* name_of(Durability durability) noexcept {
  return durability == Durability::none ? "none" : durability == Durability::checkpoint ? "checkpoint" : "step";
}

/// When chunks are updated.
enum class Updates : std::uint8_t {
  automatic,  ///< early where that is faster by the plan
  deferred,   ///< behind the next forward pass
  early,      ///< during backward, as many as their old versions fit in the DRAM that is left; the others deferred
};

[[nodiscard]] constexpr const char* name_of(Updates updates) noexcept {
  return updates == Updates::automatic ? "auto" : updates == Updates::early ? "early" : "deferred";
}

/// Files that a run writes to output_dir, as far as its caller knows.
struct Saving {
  std::uint32_t saves = 0;             ///< checkpoints that will be written, the last one included
  std::optional<std::uint32_t> limit;  ///< most of them that are kept; empty: all
  std::vector<Bytes> there = {};       ///< bytes that removing each one that is there would free, oldest first
  /// Numbers of those that hold all of the state whatever the durability is, counted from the first of `there`,
  /// ascending. The newest of them stays beside the newest `limit` checkpoints.
  std::vector<std::uint32_t> whole = {};
  Bytes freed = 0;          ///< bytes of what is removed before the first one is written
  Bytes small = 0;          ///< of each: configuration, tokenizer, log
  Bytes beside = 0;         ///< of the run: metrics, timeline, page
  bool model_only = false;  ///< checkpoints without state
  bool copies = false;      ///< the final model is a copy of the last checkpoint's, not links to its files
  bool adapters = false;    ///< what is saved of weights are those that are trained, as fp32
  bool converted = false;   ///< weights are written a second time while a checkpoint is made
};

/// A file system that storage directories or output_dir lie on.
struct FileSystem {
  std::string name;
  Bytes free = 0;                       ///< the run's own volumes count as free
  std::vector<std::size_t> paths = {};  ///< numbers of the paths that lie there
  bool output = false;                  ///< output_dir does
};

/// Fate of the activations that autograd saves of a layer, between its forward and its backward pass.
enum class Saved : std::uint8_t {
  recompute,  ///< they are let go, and backward computes them again from the boundary activation
  keep,       ///< they stay in the memory that the layer computes in
  spill,      ///< they go to a path behind forward, and come back ahead of backward; or lie on a later tier meanwhile
};

/// Layers that may spill, among those that do not recompute.
enum class Spill : std::uint8_t {
  never,
  automatic,  ///< as many as is fastest by simulation, or as it takes to have room
  all,
};

/// The layers that can keep what autograd saves of them, and what that takes: the caller's memory, beside the arena.
struct SavedActivations {
  std::vector<std::uint32_t> blocks = {};  ///< numbers of their blocks, ascending; none: every layer recomputes
  double token_bytes = 0;                  ///< that one of them keeps of each token of a step
  bool on_device = false;                  ///< in the memory of the budget's device; else in DRAM
  std::uint64_t layers = 0;                ///< of the model, those that cannot keep included
  std::optional<std::uint64_t> keep = {};  ///< layers that are to keep; empty: as many as is fastest by simulation
  std::string why = {};                    ///< why there are none that can, or not all, in words; empty: nobody said
  Spill spill = Spill::never;
  double spilled_token_bytes = 0;  ///< that move of each token where one of them spills; 0: none can
  double graph_token_bytes = 0;    ///< that one which spills keeps in memory of each token all the same
};

/// Budgets in bytes.
struct Budget {
  Bytes dram = 0;     ///< for the whole process, but for what it has in files that are mapped
  Bytes process = 0;  ///< interpreter, libraries and the rest that is there before the arena
  Bytes work = 0;     ///< PyTorch's working set, as a dry run measured it
  SavedActivations saved_activations = {};
  /// Whoever computes keeps the logits of slices from the head's loss to its gradient, as the plan says.
  bool keeps_logits = false;
  std::vector<PathBudget> paths;
  /// The tiers that host memory is made of: NUMA nodes, or DRAM; files after them. The first is the compute device's:
  /// the process and all that comes and goes in a step lie there. None: a single tier, `dram`.
  std::vector<NodeBudget> nodes;
  std::optional<DeviceTier> device;  ///< none: passes compute in host memory
  bool streams_weights = false;      ///< the device reads a weight once a pass, over a link; else it reads it in place
  PlacementShares placement;
  std::uint64_t window = 0;              ///< blocks in flight in backward; 0 = the planner decides
  std::optional<Durability> durability;  ///< empty: `step` when anything is on a path, else `none`
  /// The paths hold steps that the run goes on from: with durability `checkpoint` the plan reads them, and keeps
  /// checkpoints there, although all weights and states stay in memory, where a run that begins keeps nothing on paths.
  bool resumes = false;
  std::uint32_t checkpoints = 0;  ///< checkpoints that stay on the paths at once while the run goes on
  Updates update_schedule = Updates::automatic;
  bool own_weights = false;                   ///< as Decisions; else where that is faster, or needed, by the plan
  bool clipping = true;                       ///< steps clip, by a factor that is known when backward has ended
  bool speculative_updates = false;           ///< early updates of steps that clip go by a predicted factor
  Bytes superblock = 0;                       ///< bytes of each path that hold no data
  Bytes records = 0;                          ///< bytes of each path for records, unless durability is `none`
  std::optional<Saving> saving;               ///< none: nothing is saved, or nobody knows what
  std::vector<FileSystem> file_systems = {};  ///< that bound the volumes and savings; none: nothing is known of them

  [[nodiscard]] bool has_path() const noexcept { return !paths.empty(); }
  [[nodiscard]] bool has_nodes() const noexcept { return !nodes.empty(); }
};

/// Bytes per second of one path. 0 = unknown.
struct PathRates {
  double read = 0, write = 0;  ///< one direction alone
  double mixed = 0;            ///< both directions at once, summed
};

/// The rates of one NUMA node, measured with the update itself, by the CPUs nearest to it. 0 = unknown.
struct NodeRates {
  double update = 0;                      ///< elements per second that no number of threads exceeds
  double update_thread = 0;               ///< elements per second of one thread
  double read = 0;                        ///< bytes per second that the compute device's CPUs read at most
  double to_device = 0, from_device = 0;  ///< bytes per second of the device's link from there, both at once; 0: Rates'
  unsigned threads = 1;                   ///< of the node's update lane

  /// Elements per second of this many threads.
  [[nodiscard]] double scale_to(double hands) const noexcept {
    const double all = update_thread * hands;
    if (update <= 0) return all > 0 ? all : 1e9;
    return all > 0 ? std::min(update, all) : update;
  }
};

/// Seconds that so many bytes or elements take at a rate; at one that is not known, 0, none.
[[nodiscard]] constexpr double seconds_at(Bytes amount, double rate) noexcept {
  return rate > 0 ? static_cast<double>(amount) / rate : 0;
}

/// Rates of the machine: bytes and elements per second, seconds per pass at the largest step. 0 = unknown.
struct Rates {
  unsigned cores = 1;
  std::vector<PathRates> paths;  ///< as in Budget::paths; fewer: the rest is unknown
  std::vector<PathRates> near_paths =
      {};                        ///< the same were none remote (remote_drives.h); empty: none is, or nobody knows
  std::vector<NodeRates> nodes;  ///< as in Budget::nodes; none: one node
  double update = 0;             ///< elements per second, one thread
  double update_all = 0;         ///< elements per second, every core at once; 0 = unknown
  unsigned update_cores = 0;     ///< that only updates use, beside `cores`; 0: they share those
  double update_beside = 0;      ///< elements per second, one thread while compute has all cores; 0 = unknown
  double compute_beside = 0;     ///< share of its speed that compute keeps then; 0 = unknown: cores are shared fairly
  double io_cores = 0.1;         ///< cores that compute loses to the paths at full speed
  double forward = 0, backward = 0;              ///< one layer block of average size, all micro-batches
  double kept_forward = 0, kept_backward = 0;    ///< the same of one that keeps what autograd saves
  double head_loss = 0, head_gradient = 0;       ///< one slice, all micro-batches
  double tail_forward = 0, tail_backward = 0;    ///< the last layer block when a head follows
  double entry_forward = 0, entry_backward = 0;  ///< of the first layer block: images become features
  double between = 0;                            ///< once a step: prologue, embedding, hand-over
  double to_device = 0, from_device = 0;         ///< bytes per second of the device's link, both at once
  double copy_latency = 0;                       ///< seconds that a copy takes beside its bytes
  double copy = 0;                               ///< bytes per second within DRAM, one thread
  double device_update = 0;                      ///< elements per second of the update on the device
  double network = 0;          ///< bytes per second between this process and others, each way; of other machines
  double network_inside = 0;   ///< the same and those of its machine; 0: as `network`
  double network_latency = 0;  ///< seconds that a transfer there takes beside its bytes

  /// Elements per second of this many threads, where memory is one node.
  [[nodiscard]] double update_with(double hands) const noexcept {
    return NodeRates{.update = update_all, .update_thread = update}.scale_to(hands);
  }

  /// All paths together: pieces are distributed so that they finish at the same time.
  [[nodiscard]] PathRates storage() const noexcept {
    PathRates sum;
    for (const auto& path : paths) {
      sum.read += path.read;
      sum.write += path.write;
      sum.mixed += path.mixed;
    }
    return sum;
  }
};

}  // namespace spillway::plan
