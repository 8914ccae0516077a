// A schedule is one training step as data: tasks with lanes, dependencies, bytes and deadlines, and buffers with
// lifetimes.
//
// One template describes every step. It starts with the updates left over from the step before (deferred, in the order
// the forward pass needs the chunks), runs forward, head and backward, and ends with the first reads of the next step's
// updates. Chunks whose old version has room in DRAM may be updated early, as soon as their gradient is complete; when
// the end of the step confirms what was applied, their deferred update has nothing left to do, else the old version is
// put back and it runs. Steps are instances of it: tasks that do not apply (no update pending, evaluation) are skipped
// in place and keep their dependencies. `simulate` and the executor read the same template.
//
// What is frozen takes no part in any of that: its weights are read for the forward pass and again for the backward
// pass, and never written. Layers below the lowest one that is trainable have no backward pass.
//
// Positions: the template is a sequence of events, one per chunk, where its update belongs (its slot), and one per
// pass. A buffer lives from one position to another; one that is filled near the end of a step for the start of the
// next wraps around.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/plan/condition.h"
#include "spillway/plan/description.h"
#include "spillway/plan/kinds.h"
#include "spillway/plan/placement.h"

namespace spillway::plan {

struct Dependency {
  Index task = kNone;
  bool previous = false;  ///< of the instance before this one
};

/// Object of a task: one, or neighbours.
struct Object {
  ObjectKind kind = ObjectKind::chunk;
  Index index = kNone;
  Index count = 1;  ///< copies of weights, states and gradients: chunks from `index` on, neighbours on both sides

  bool operator==(const Object&) const = default;
  [[nodiscard]] Index end() const noexcept { return index + count; }
};

/// Output of a pass that a later pass of the step reads by way of a path. A step writes it once and reads it once, and
/// nothing outlives the step.
struct Activation {
  Object what;
  Bytes bytes = 0;  ///< of each of the two transfers

  bool operator==(const Activation&) const = default;
};

/// Bytes of a buffer.
struct Place {
  Index buffer = kNone;
  Bytes offset = 0;  ///< from the start of the buffer

  [[nodiscard]] bool any() const noexcept { return buffer != kNone; }
};

struct Task {
  Op op = Op::compute;
  Lane lane = Lane::compute;
  std::uint16_t unit = 0;  ///< which of the lanes of that kind; update: the node, an index into Budget::nodes
  Object what;
  Place from, to;   ///< transfers; no buffer: a storage path. Refits, and gathers of what they make: `to`, the
                    ///< auxiliary fields, where this process has the chunk
  Bytes bytes = 0;  ///< transfers: bytes moved; updates: elements; refits: as much of an update, of an average step
  bool by_rows = false;  ///< of packed rows: `bytes` is the most, and a step moves as many as it has distinct tokens
  Bytes between = 0;     ///< of the bytes of a task of the network, those to or from other machines
  std::uint32_t deadline =
      0;  ///< position that needs it, counted from the start of the instance; may exceed `positions`
  Condition when;
  std::vector<Dependency> needs;

  [[nodiscard]] bool moves(ObjectKind kind) const noexcept { return op == Op::transfer && what.kind == kind; }
  [[nodiscard]] bool moves(Lane by, ObjectKind kind) const noexcept { return lane == by && moves(kind); }
  /// The end in memory of a transfer between memory and a path.
  [[nodiscard]] const Place& memory() const noexcept { return to.any() ? to : from; }
  /// The end on the host of a copy between the host and a device.
  [[nodiscard]] const Place& on_host() const noexcept { return traits(lane).fetches ? from : to; }
  [[nodiscard]] const Place& on_device() const noexcept { return traits(lane).fetches ? to : from; }
};

/// True if the task moves something only after a pass, here or in another process, has left a background refit. It is
/// next to nothing for the link or the network, and in plans it takes no time.
[[nodiscard]] constexpr bool follows_refit(const Task& task) noexcept {
  return task.op != Op::refit && traits(task.what.kind).of_refit;
}

enum class BufferClass : std::uint8_t {
  weight,      ///< resident weights
  state,       ///< resident remainder and moments
  grad,        ///< gradients from backward to update, or on their way to a path
  activation,  ///< boundary activations
  window,      ///< weights on their way through memory
  staging,     ///< states and gradients around an update
  scratch,     ///< fp32 sums, hidden gradient, converted weights
  undo,        ///< old versions of chunks that are updated early
  spilled,     ///< what autograd saved of layers, on its way to a path and back
  features,    ///< of images, from the forward pass of the first layer to its backward pass, or on their way
};

struct Buffer {
  BufferClass kind = BufferClass::scratch;
  TierKind tier = TierKind::host;  ///< without a device with memory of its own everything is the host's
  /// Host: the tier of its memory that a buffer lies on, an index into Budget::nodes. What stays of a chunk is 0 here;
  /// Schedule::node has it.
  std::uint16_t node = 0;
  Bytes bytes = 0;
  std::uint32_t first = 0;                     ///< first position in use
  std::uint32_t last = 0;                      ///< last position in use; smaller than `first` when it wraps around
  bool whole = false;                          ///< in use at every position
  Bytes offset = 0;                            ///< in the arena of its tier, from lay_out()
  std::vector<Index> first_tasks, last_tasks;  ///< who fills it first, who lets go of it last
  std::vector<Index> earlier_tasks;            ///< who lets go of one that wraps around in the instance that filled it

  [[nodiscard]] bool on_host() const noexcept { return traits(tier).on_host; }
  [[nodiscard]] bool on_device() const noexcept { return traits(tier).on_device; }
  /// Calls body(first, last) for the positions at which it is in use, of so many: twice where it wraps around.
  template <class Body>
  void each_use(std::uint32_t positions, const Body& body) const {
    if (whole) return body(0, positions - 1);
    if (first <= last) return body(first, last);
    body(first, positions - 1);
    body(0, last);
  }
};

/// A tensor, or several behind one another, that a pass reads or writes. Operands of several passes share a buffer
/// where they are the same tensor.
enum class Operand : std::uint8_t {
  converted,        ///< copy of the weights in the type of the products (plan/conversion.h)
  input,            ///< boundary activation
  output,           ///< boundary activation
  packed_input,     ///< packed rows (Description::packed_rows_bytes) on a device, of which the pass makes its input
  gathered_rows,    ///< of the embedding's forward passes: their result on the host; for a device packed rows
  hidden_gradient,  ///< gradient of the boundary activation, replaced in place
  head_sums,        ///< fp32 gradient of hidden states, over the slices of a head
  saved,            ///< of a layer that spills: tensors that autograd saves
  features,         ///< of the first layer: features of images
  gradient,         ///< rounded
  gradient_sums,    ///< fp32
  sent_sums,        ///< several processes: gradient_sums on the host
  received_sums,    ///< several processes: gradient sums of others
  row_sums,         ///< fp32 gradient of the embedding's rows of this step
  rows,             ///< the same, rounded, until the update
  sent_rows,        ///< several processes: sums of rows that this one makes for others
  received_rows,    ///< several processes: sums of rows that others make for this one
  machine_rows,     ///< several machines of several processes: sums of rows that this one adds for its machine
};
inline constexpr std::size_t kOperands = 18;
[[nodiscard]] constexpr std::array<Index, kOperands> no_operands() noexcept {
  std::array<Index, kOperands> out{};
  out.fill(kNone);
  return out;
}

/// Buffers that hold the weights of one object (pass_weights()) for a pass, its chunks one behind the other.
struct PassWeights {
  Range chunks;
  Index here = kNone;   ///< where the pass computes
  Index whole = kNone;  ///< several processes: on the host, to where others are sent; kNone: a pass before has them
};

struct Pass {
  PassKind kind = PassKind::forward;
  Index block = kNone;  ///< into Layout::blocks(); head passes with a tied head: the embedding
  Index slice = 0;      ///< chunk of the block, embedding and head passes
  Index task = kNone;
  std::uint32_t position = 0;
  bool on_host = false;            ///< although there is a device with memory of its own
  Saved saved = Saved::recompute;  ///< passes of a layer
  std::array<Index, kOperands> operands = no_operands();
  std::vector<PassWeights> weights = {};  ///< by object, in the order of chunks
  std::vector<Index> asks = {};           ///< tasks that bring weights that the pass asks for, if any, while it runs

  /// The buffer of an operand; kNone: the pass has none.
  [[nodiscard]] Index operator[](Operand what) const noexcept { return operands[static_cast<std::size_t>(what)]; }
  [[nodiscard]] Index& operator[](Operand what) noexcept { return operands[static_cast<std::size_t>(what)]; }
};

/// How far ahead transfers run, in chunks (updates) and passes.
struct Lookahead {
  std::uint32_t state_read = 1;   ///< states read this many chunks before their update
  std::uint32_t write = 1;        ///< buffers kept this many chunks after it
  std::uint32_t weight_read = 1;  ///< weights and gradients read this many chunks before
  std::uint32_t backward = 1;     ///< weights and activations read this many passes before backward
  std::uint32_t grad_write = 1;   ///< gradient buffers kept this many passes
  std::uint32_t head = 1;         ///< slices of the head read this many passes before
  std::uint32_t device = 1;       ///< copies to and from a device run this many passes before and after
  Bytes coalesce_to = kGoodCopy;  ///< neighbours of a block are copied together until a copy has this many bytes
};

/// Bytes that a step writes so that it is durable (docs/decisions/0001-durable-storage.md).
struct Redo {
  bool gradients = false;    ///< every gradient, and the resident part of a snapshot whose other part lies on a path
  std::uint32_t period = 1;  ///< updates between two snapshots of a chunk whose state is resident
};

/// Places of a chunk's field groups.
struct GroupPlaces {
  Place weight, state, grad;
  Place change;  ///< of a reduced matrix that a device updates: change of its S, in a buffer that all of them share
};

/// Places of a change and of the copies on a device that take it.
struct ChangePlaces {
  Place here, there;        ///< the change, on the host and on the device
  Place weight, remainder;  ///< copies
};

/// The update of a chunk during backward.
struct Early {
  Index task = kNone;  ///< kNone: there is none
  Index undo = kNone;  ///< buffer for the bytes it changes: weight, then state
  Place grad;
};

struct Schedule {
  std::vector<Task> tasks;
  std::vector<Pass> passes;  ///< in order of execution
  std::vector<Buffer> buffers;
  std::uint32_t positions = 0;
  std::vector<Index> update_task;      ///< by chunk; kNone: it does not learn
  std::vector<Index> refit_task;       ///< by chunk; kNone: it has no background refit
  std::vector<Index> resident_weight;  ///< by chunk: buffer on the host that passes read it in; kNone otherwise
  std::vector<Index> resident_state;   ///< by chunk: buffer; kNone otherwise
  /// Places of each chunk's groups around an update. A chunk that does not learn has a weight that stays, or nothing.
  /// Groups that a device updates, with their master on the host, have their places on the host.
  std::vector<GroupPlaces> groups;
  /// Places of each chunk on the device that updates it; empty without such a device. A chunk without a weight here is
  /// updated elsewhere.
  std::vector<GroupPlaces> device_groups = {};
  std::vector<ChangePlaces> changes = {};  ///< by chunk; empty where no copy takes a change
  std::vector<Index> network = {};         ///< tasks of the network in the order in which every process begins them
  Bytes network_sent = 0, network_received = 0;  ///< by these, at most: in a step that refits every matrix
  Bytes sent_between = 0, received_between = 0;  ///< of these, to and from other machines
  std::vector<std::uint32_t> snapshot_every,
      snapshot_turn;                         ///< by chunk: as Task's, of its snapshots; every 0: no snapshot
  std::vector<Early> early;                  ///< by chunk
  std::vector<std::uint16_t> node;           ///< by chunk: that what stays of it lies on
  std::vector<Activation> activations = {};  ///< those that lie on paths between two passes

  /// Nothing is known of so many chunks yet.
  void add_chunks(std::size_t count);

  /// The lanes that update: one for each NUMA node up to the last that has chunks.
  [[nodiscard]] std::size_t update_lanes() const {
    return tasks.empty() ? 1 : std::ranges::max_element(tasks, {}, &Task::unit)->unit + std::size_t{1};
  }
  [[nodiscard]] bool has_refits() const {
    return std::ranges::any_of(refit_task, [](Index task) { return task != kNone; });
  }
  /// True if the update that is number `updates` of the run leaves a snapshot of the chunk on the paths.
  [[nodiscard]] bool makes_snapshot(Index chunk, std::uint64_t updates) const {
    return snapshot_every[chunk] != 0 && updates % snapshot_every[chunk] == snapshot_turn[chunk];
  }

  /// The buffer of an operand that one buffer serves in all passes of a step; kNone: no pass has it.
  [[nodiscard]] Index shared(Operand what) const {
    const auto it = std::ranges::find_if(passes, [&](const Pass& pass) { return pass[what] != kNone; });
    return it == passes.end() ? kNone : (*it)[what];
  }

  /// Places in which the update of a chunk reads its groups.
  [[nodiscard]] const GroupPlaces& updated_at(Index chunk) const {
    return !device_groups.empty() && device_groups[chunk].weight.any() ? device_groups[chunk] : groups[chunk];
  }
  /// True if a copy of the chunk on a device takes its change.
  [[nodiscard]] bool takes_change(Index chunk) const { return !changes.empty() && changes[chunk].weight.any(); }
  /// True if the update of the chunk waits, in each step whose passes have not asked for the chunk, until a pass does.
  [[nodiscard]] bool update_waits(Index chunk) const {
    return update_task[chunk] != kNone && tasks[update_task[chunk]].when.only == OnlyIf::due;
  }
  /// True if a device updates the chunk.
  [[nodiscard]] bool updated_there(Index chunk) const {
    return update_task[chunk] != kNone && is_of_device(tasks[update_task[chunk]].lane);
  }
};

/// Idle priority of each task: true for updates that may wait until compute waits, when both share cores. Their bytes
/// stay in memory, and no read waits for the bytes that they release, nor a copy to a device for the weights. (A thread
/// beside compute costs it more than the update takes: the other threads of a matrix product wait for the one that is
/// held up.) `schedule` has the dependencies of shared bytes.
[[nodiscard]] std::vector<bool> idle_priority(const Schedule& schedule);

/// Bytes before the first of `count` rounded rows in the rows buffer: their count and their ids (int64).
[[nodiscard]] constexpr Bytes sparse_header(std::uint64_t count) noexcept {
  return round_up((count + 1) * sizeof(std::int64_t), 64);
}
/// The buffer for so many rows of a table.
[[nodiscard]] constexpr Bytes sparse_bytes(std::uint64_t count, std::uint64_t columns, Bytes element) noexcept {
  return round_up(sparse_header(count) + count * columns * element, 4096);
}
/// It is written in parts of at most this, each a gradient of its own.
inline constexpr Bytes kSparsePart = 64 * MiB;

/// The chunks that a pass reads.
[[nodiscard]] Range chunks_of(const state::Layout& layout, const Pass& pass);

/// Calls body(chunk, place) for each chunk of a pass's weights, in order: with its place where the pass computes, or in
/// the buffers `whole`.
template <class Body>
void each_weight(const Pass& pass, const state::Layout& layout, const state::UpdateRule& rule,
                 Index PassWeights::*buffer, const Body& body) {
  for (const auto& it : pass.weights) {
    Place place{it.*buffer};
    for (auto c = it.chunks.first; c < it.chunks.end(); ++c) {
      body(c, place);
      place.offset += state::weight_bytes(rule, layout.chunks()[c]);
    }
  }
}

/// Says on which node what stays of each chunk lies, and so which lane updates it. make_schedule()
/// has done so already.
void set_nodes(Schedule& schedule, const Placement& placement);

/// Pure.
[[nodiscard]] Schedule make_schedule(const Description& description, const state::Layout& layout,
                                     const Placement& placement, const Lookahead& lookahead, const Redo& redo = {},
                                     const SavedPlacement& saved = {});

}  // namespace spillway::plan
