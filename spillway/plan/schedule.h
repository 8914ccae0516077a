// A step as data: tasks with lanes, dependencies, bytes and deadlines, and buffers with lifetimes.
//
// One template describes every step. It starts with the updates left over from the step before (deferred, in the order
// the forward pass needs the chunks), runs forward, head and backward, and ends with the first reads of the next step's
// updates. Chunks whose old version has room in DRAM may be updated early, as soon as their gradient is complete; when
// the end of the step confirms what was applied, their deferred update has nothing left to do, else the old version is
// put back and it runs. Steps are instances of it: tasks that do not apply (no update pending, evaluation) are skipped
// in place and keep their dependencies. `simulate` and the executor read the same template.
//
// What is frozen takes no part in any of that: its weights are read for the forward visit and again for the backward
// visit, and never written. Layers below the lowest one that learns have no backward visit.
//
// Positions: the template is a sequence of events, one per chunk, where its update belongs ("tick"), and one per visit.
// A buffer lives from one position to another; one that is filled near the end of a step for the start of the next
// wraps around.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/plan/description.h"
#include "spillway/plan/residency.h"

namespace spillway::plan {

enum class Lane : std::uint8_t { compute, update, read, write, to_device, from_device, device_update, fit };

/// As timelines and stalls say it: "read", "to_device".
[[nodiscard]] constexpr const char* name_of(Lane lane) noexcept {
  constexpr const char* kNames[] = {"compute",   "update",      "read",          "write",
                                    "to_device", "from_device", "device_update", "fit"};
  return kNames[static_cast<std::size_t>(lane)];
}

/// Where a buffer lies. On a device without memory of its own everything is the host's.
enum class Tier : std::uint8_t { host, device };

enum class TaskKind : std::uint8_t {
  read_weight,
  read_state,
  read_grad,
  read_activation,
  write_weight,
  write_state,
  write_grad,
  write_activation,
  write_rows,
  update,
  visit,
  // Copies to a device with memory of its own, and from there:
  upload_weight,
  upload_activation,
  download_grad,
  download_activation,
  download_hidden,  ///< the gradient of hidden states, for the embedding
  download_weight,  ///< of a chunk that lives there, for its image; of one that passes, to where its master lies
  download_state,
  upload_state,  ///< of a chunk that passes, for its update
  upload_grad,
  fit,  ///< projectors, from a gradient that a visit has left, into the gradient's record
  // Where a device updates what learns in subspaces, and gradients stay there (plan/learned.h):
  download_record,  ///< of the first of a block's chunks: then what projectors are learned from has left it, too
  upload_pair,      ///< projectors that were learned, into the gradient's record there
};

enum class VisitKind : std::uint8_t {
  embedding,           ///< gather the rows of one slice
  forward,             ///< one layer block
  head_loss,           ///< pass 1 over one slice of the head
  head_gradient,       ///< pass 2
  backward,            ///< one layer block, recomputed
  embedding_backward,  ///< scatter the rows' gradients
};

/// What a task is for; an instance runs the phases that apply to it and skips the others.
enum class Phase : std::uint8_t {
  update,     ///< needs an update pending
  forward,    ///< weights for the forward visit (and the update before it), forward visits
  head_loss,  ///< pass 1 over the head
  backward,   ///< pass 2, backward, gradients, border activations
  ahead,      ///< first reads for the next step's updates
  early,      ///< updates during backward, before the step is decided
};

struct Dependency {
  Index task = kNone;
  bool previous = false;  ///< of the instance before this one
};

struct Task {
  TaskKind kind = TaskKind::visit;
  Lane lane = Lane::compute;
  std::uint16_t unit = 0;   ///< which of the lanes of that kind; update: the node, an index into Budget::nodes
  Index subject = kNone;    ///< chunk; border for activations; index into Schedule::visits for visits; part of the rows
  Index count = 1;          ///< copies of weights and gradients: chunks from `subject` on, neighbours on both sides
  Index buffer = kNone;     ///< transfers: where the bytes are; copies: on the device
  Bytes buffer_offset = 0;  ///< transfers: from the start of the buffer
  Index host_buffer = kNone;  ///< copies: where the bytes are on the host, and
  Bytes host_offset = 0;      ///< from the start of that buffer
  Bytes bytes = 0;  ///< transfers: bytes moved; updates: elements; fits: as much of an update, of an average step
  std::uint32_t deadline =
      0;  ///< position that needs it, counted from the start of the instance; may exceed `positions`
  Phase phase = Phase::forward;
  std::uint32_t every = 1, turn = 0;  ///< phase update: runs when the count of updates modulo `every` is `turn`
  bool stays = false;  ///< what it brings stays on the device: with visits, it runs when that has changed on the host
  std::vector<Dependency> needs;
};

/// Copies that only move something where a visit has left projectors to be learned: next to nothing for the link, and
/// in plans nothing.
[[nodiscard]] constexpr bool follows_learning(const Task& task) noexcept {
  return task.kind == TaskKind::download_record || task.kind == TaskKind::upload_pair;
}

enum class BufferClass : std::uint8_t {
  weight,      ///< resident weights
  state,       ///< resident residual and moments
  grad,        ///< gradients from backward to update, or on their way to a path
  activation,  ///< border activations
  window,      ///< weights on their way through memory
  staging,     ///< states and gradients around an update
  scratch,     ///< fp32 sums, hidden gradient, widened weights
  undo,        ///< old versions of chunks that are updated early
};

struct Buffer {
  BufferClass kind = BufferClass::scratch;
  Tier tier = Tier::host;
  Bytes bytes = 0;
  std::uint32_t first = 0;                     ///< first position in use
  std::uint32_t last = 0;                      ///< last position in use; smaller than `first` when it wraps around
  bool whole = false;                          ///< in use at every position
  Bytes offset = 0;                            ///< in the arena of its tier, from lay_out()
  std::vector<Index> first_tasks, last_tasks;  ///< who fills it first, who lets go of it last
  std::vector<Index> earlier_tasks;            ///< who lets go of one that wraps around in the instance that filled it
};

struct Visit {
  VisitKind kind = VisitKind::forward;
  Index block = kNone;  ///< into Layout::blocks(); head visits with a tied head: the embedding
  Index slice = 0;      ///< chunk of the block, embedding and head visits
  Index task = kNone;
  std::uint32_t position = 0;
  bool on_host = false;  ///< although there is a device with memory of its own
  // Buffers, kNone where there is none.
  Index weights = kNone, input = kNone, output = kNone, grad = kNone, grad_sum = kNone;
};

/// How far ahead transfers run, in chunks (updates) and visits.
struct Lookahead {
  std::uint32_t state_read = 1;   ///< states read this many chunks before their update
  std::uint32_t write = 1;        ///< buffers kept this many chunks after it
  std::uint32_t weight_read = 1;  ///< weights and gradients read this many chunks before
  std::uint32_t backward = 1;     ///< weights and activations read this many visits before backward
  std::uint32_t grad_write = 1;   ///< gradient buffers kept this many visits
  std::uint32_t head = 1;         ///< slices of the head read this many visits before
  std::uint32_t device = 1;       ///< copies to and from a device run this many visits before and after
  Bytes join = kGoodCopy;         ///< neighbours of a block are copied together until a copy has this many bytes
};

/// What a step writes so that it is durable (docs/decisions/0001-durable-storage.md).
struct Redo {
  bool gradients = false;    ///< every gradient, and the resident part of an image whose other part lies on a path
  std::uint32_t period = 1;  ///< updates between two images of a chunk whose state is resident
};

/// Where the update on a device finds a chunk whose master, state and gradient lie on the host
/// (DeviceResidency::passing).
struct Passing {
  Index weight = kNone, state = kNone, grad = kNone;  ///< buffers there; kNone: the chunk does not pass
  Bytes weight_at = 0, state_at = 0, grad_at = 0;     ///< offsets in these buffers
};

/// The update of a chunk during backward.
struct Early {
  Index task = kNone;  ///< kNone: there is none
  Index undo = kNone;  ///< buffer for the bytes it changes: weight, then state
  Index grad = kNone;  ///< buffer with the gradient, and
  Bytes grad_at = 0;   ///< where in it
};

struct Schedule {
  std::vector<Task> tasks;
  std::vector<Visit> visits;  ///< in order of execution
  std::vector<Buffer> buffers;
  std::uint32_t positions = 0;
  std::vector<Index> update_task;  ///< by chunk; kNone: it does not learn
  std::vector<Index> fit_task;     ///< by chunk; kNone: it does not learn in a subspace
  Index delta = kNone;             ///< buffer on a device: the change of one S that is updated there; kNone: none is
  std::vector<Index> resident_weight;                           ///< by block (layers) : buffer; kNone otherwise
  std::vector<Index> resident_slice;                            ///< by chunk (tables): buffer; kNone otherwise
  std::vector<Index> resident_state;                            ///< by chunk: buffer; kNone otherwise
  std::vector<Index> update_weight, update_state, update_grad;  ///< by chunk: buffers that the update works on; kNone
                                                                ///< of what does not learn, but for a resident weight;
                                                                ///< of what passes through a device: its places on the
                                                                ///< host
  std::vector<Bytes> weight_at, state_at, grad_at;              ///< by chunk: offset in that buffer
  Index hidden_gradient = kNone, accumulator = kNone;           ///< buffers
  Index embedding_output = kNone,
        embedding_gradient = kNone;  ///< with a device: where the embedding's visits, on the host, find both
  Index widened =
      kNone;  ///< buffer that the weights of each visit are widened into; kNone: visits read them as they are
  Index row_sums = kNone,
        rows = kNone;  ///< buffers of an embedding that learns: fp32 gradient of the step's rows; rounded, pending
  std::vector<std::uint32_t> image_every, image_turn;  ///< by chunk: as Task's, of its images; every 0: no image
  std::vector<Early> early;                            ///< by chunk
  std::vector<Passing> passing = {};                   ///< by chunk; empty: none passes
  std::vector<std::uint16_t> node;                     ///< by chunk: as Residency::node; empty: the first

  /// Whether the update that is number `updates` of the run leaves an image of the chunk on the paths.
  [[nodiscard]] bool makes_image(Index chunk, std::uint64_t updates) const {
    return image_every[chunk] != 0 && updates % image_every[chunk] == image_turn[chunk];
  }

  /// Whether a device updates the chunk.
  [[nodiscard]] bool updated_there(Index chunk) const {
    return update_task[chunk] != kNone && tasks[update_task[chunk]].lane == Lane::device_update;
  }
  /// Whether it runs once and not in every step: it brings to a device what stays there and the host does not update.
  [[nodiscard]] bool runs_once(const Task& task) const {
    return task.stays && (update_task[task.subject] == kNone || updated_there(task.subject));
  }

  /// Whether nothing is left to do for this task when the chunk's early update of the instance before is kept.
  [[nodiscard]] bool settled_by_early(const Task& task) const {
    return task.phase == Phase::update && (task.kind == TaskKind::update || task.kind == TaskKind::read_grad) &&
           early[task.subject].task != kNone;
  }
};

/// By task: updates that may wait until compute waits, when they share its cores: what they work on stays in memory,
/// and no read waits for the bytes that they let go, nor a copy to a device for the weights. (A thread beside compute
/// costs it more than the update takes: the other threads of a matrix product wait for the one that is held up.)
/// `schedule` has the dependencies of shared bytes.
[[nodiscard]] std::vector<bool> patient_updates(const Schedule& schedule);

/// Bytes before the first of `count` rounded rows in the rows buffer: their count and their ids (int64).
[[nodiscard]] constexpr Bytes rows_header(std::uint64_t count) noexcept {
  return round_up((count + 1) * sizeof(std::int64_t), 64);
}
/// The buffer for so many rows of a table.
[[nodiscard]] constexpr Bytes rows_bytes(std::uint64_t count, std::uint64_t columns, Bytes element) noexcept {
  return round_up(rows_header(count) + count * columns * element, 4096);
}
/// It is written in parts of at most this, each a gradient of its own.
inline constexpr Bytes kRowsPart = 64 * MiB;

/// The chunks that a visit reads.
[[nodiscard]] Range chunks_of(const state::Layout& layout, const Visit& visit);

/// Values of the copy that a visit multiplies by where weights are widened: those of its chunks, one after the other
/// without gaps. 0: it reads rows as they are kept, or no weights.
[[nodiscard]] std::uint64_t widened_values(const state::Layout& layout, const Visit& visit);
/// Where in the copy of its block a tensor begins.
[[nodiscard]] std::uint64_t widened_first(const state::Layout& layout, std::size_t tensor);

/// Says on which node what stays of each chunk lies (Residency::node), and so which lane updates it. make_schedule()
/// has done so already.
void set_nodes(Schedule& schedule, const Residency& residency);

/// Pure. `residency` vectors have one entry per chunk (activation: per layer block).
[[nodiscard]] Schedule make_schedule(const Description& description, const state::Layout& layout,
                                     const Residency& residency, const Lookahead& lookahead, const Redo& redo = {});

}  // namespace spillway::plan
