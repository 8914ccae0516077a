// A step while it is made: tasks, buffers and what waits for what. Each pass over it adds tasks and edges, and none
// changes what another has made.
//
// What a pass makes may wait for an event before the pass has run that brings the event about: who writes a gradient to
// a path waits until it is on the host, whether a pass of a block leaves it there or a copy from a device. freeze()
// turns events into the tasks that were said to bring them about; one that nobody brings about holds up nobody.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "spillway/plan/step/order.h"
#include "spillway/plan/step/snapshot_groups.h"

namespace spillway::plan::step {

/// Events of a chunk in a step.
enum class ChunkEvent : std::uint8_t {
  weight_read,        ///< its weight has come from a path to where the update works on it
  state_read,         ///< so has its state
  gradient_complete,  ///< its gradient is in host memory, as far as anything there waits for it
  gradient_refitted,  ///< its auxiliary fields are in it there, where a pass has left a refit of them
  gradient_ready,     ///< the gradient is where the update finds it, or is brought from to a device
  gradient_used,      ///< nothing needs the buffer any more that the update found it in
  auxiliary_there,    ///< auxiliary fields that were refitted on the host have come to the gradient on the device
  weight_updated,     ///< the new weight is at its place on the host
  state_updated,      ///< so is the new state
  snapshot_taken,     ///< of what an update has left, all that a durable step writes has left the place of the update
};
inline constexpr std::size_t kChunkEvents = 10;

struct Event {
  Index number = kNone;
};

/// Place of the weights of an object on the host, for a pass.
struct HostWeights {
  Index buffer = kNone;
  std::vector<Index> reads;  ///< tasks that bring them, by chunk of the object; empty: they stay, or were there before
};

/// The first and the last task of a movement between processes.
struct Legs {
  Index first = kNone, last = kNone;

  [[nodiscard]] bool any() const noexcept { return last != kNone; }
};

/// Inputs of a step.
struct StepInputs {
  const Description& description;
  const state::Layout& layout;
  const Placement& placement;
  const Lookahead& lookahead;
  const Redo& redo;
  const SavedPlacement saved = {};
};

class StepGraph : public StepInputs {
 public:
  explicit StepGraph(StepInputs inputs);
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  const state::UpdateRule rule = description.rule();
  const StepOrder order{description, layout, lookahead, placement.device};
  std::vector<Index> updates;  ///< chunks that this process updates, in order

  [[nodiscard]] const state::Block& block(Index b) const { return layout.blocks()[b]; }
  [[nodiscard]] const state::Chunk& chunk(Index c) const { return layout.chunks()[c]; }
  [[nodiscard]] Index chunks() const { return static_cast<Index>(layout.chunks().size()); }
  [[nodiscard]] Index chunk_of(Index b, std::size_t i) const { return static_cast<Index>(block(b).first_chunk + i); }
  /// True if this process has the chunk.
  [[nodiscard]] bool is_mine(Index c) const { return description.has(layout, chunk(c)); }
  /// True if this process updates it.
  [[nodiscard]] bool is_trainable(Index c) const { return state::is_trainable(chunk(c).training) && is_mine(c); }
  [[nodiscard]] Bytes weight_bytes(Index c) const { return state::weight_bytes(rule, chunk(c)); }
  [[nodiscard]] Bytes state_bytes(Index c) const { return state::state_bytes(rule, chunk(c)); }
  [[nodiscard]] Bytes grad_bytes(Index c) const { return state::grad_bytes(rule, chunk(c)); }

  // Homes of the objects:
  /// The memory that passes compute in, but those of the embedding.
  [[nodiscard]] TierKind compute_tier() const noexcept { return placement.device ? TierKind::device : TierKind::host; }
  [[nodiscard]] bool computes_on_host(Index pass) const { return !placement.device || out.passes[pass].on_host; }
  /// Gradients of a pass are complete on the host, where a scatter or the pass itself leaves them.
  [[nodiscard]] bool completes_on_host(Index pass) const { return computes_on_host(pass) || scatters[pass].any(); }
  /// Bytes of a buffer for a boundary activation, or for its gradient.
  [[nodiscard]] Bytes boundary_buffer_bytes() const { return round_up(description.boundary_bytes(), 4096); }
  /// True if passes read the weights of chunk c where they stay; else they come to a window.
  [[nodiscard]] bool stays(Index c) const {
    return placement[c].weight.in_memory() && !placement[c].weight.keeps_own();
  }
  /// True if this process brings them there, from a path, or from a device where it keeps its own.
  [[nodiscard]] bool is_read(Index c) const { return is_mine(c) && !placement[c].weight.on_host(); }
  /// A copy of the chunk on the device takes its change.
  [[nodiscard]] bool takes_change(Index c) const { return is_trainable(c) && placement[c].takes_change(); }
  void place_copy(Index c, Place there);

  // Output of the passes:
  Schedule out;  ///< unfinished: without what waits for events
  Index add(Task task);
  Index add(Buffer buffer);
  Index add_buffer(BufferClass kind, Bytes bytes, std::uint32_t first, std::uint32_t last,
                   TierKind tier = TierKind::host);
  /// In use at every position.
  Index add_whole(BufferClass kind, Bytes bytes, TierKind tier = TierKind::host);
  [[nodiscard]] Index task_of(Index pass) const { return out.passes[pass].task; }
  /// The task after which the gradients of a pass are complete: its own, or in a world of several processes a scatter.
  [[nodiscard]] Index maker_of(Index pass) const { return scatters[pass].any() ? scatters[pass].last : task_of(pass); }

  /// Adds an edge; where either is kNone, none is added.
  void need(Index task, Index on, bool previous = false);
  void need(Index task, Event on, bool previous = false);
  /// The event has come when the task has ended, of the instance before when `previous`; and all others of that event.
  void brings(Index task, Event event, bool previous = false);

  /// Who fills a buffer first, and who lets go of it last: of two that share bytes the one waits for the other.
  void fills(Index task, Index buffer) { out.buffers[buffer].first_tasks.push_back(task); }
  void lets_go(Index task, Index buffer) { out.buffers[buffer].last_tasks.push_back(task); }
  void lets_go(Event event, Index buffer) { users_.push_back({buffer, event}); }

  [[nodiscard]] Event find_event(Index chunk, ChunkEvent event) const;

  /// The pass finds the weights of one more object so on the host; there it reads them, unless it computes on a device.
  void add_weights(Index pass, Range chunks, HostWeights weights);

  // Handles that several passes read; tasks and buffers are kNone where there is none:
  const SnapshotGroups snapshots{description, layout, placement, lookahead.coalesce_to};  ///< of what lives on a device
  std::vector<std::vector<HostWeights>> host_weights;                                     ///< by pass and object
  std::vector<Index> gathers;                          ///< by pass: the task that brings others' weights to its buffer
  std::vector<Legs> scatters;                          ///< by pass: the tasks that bring its gradients to their owners
  std::vector<Index> downloads;                        ///< by pass: the task that brings sums of a device to be sent
  std::vector<Place> gradients;                        ///< by chunk: the last place in memory that its gradient has
  std::vector<Index> write_weight, write_grad;         ///< by chunk: tasks
  std::vector<Index> snapshot_weight, snapshot_state;  ///< by chunk: tasks that write what stays in memory
  std::vector<Index> master_uploads;                   ///< tasks that bring weights to a device for their update there

  /// The schedule, with every event resolved.
  [[nodiscard]] Schedule freeze() &&;

 private:
  struct Bringer {
    Index event, task;
    bool previous;
  };
  struct Waiter {
    Index task;
    Event on;
    bool previous;
  };
  struct User {
    Index buffer;
    Event last;
  };

  std::vector<Bringer> bringers_;
  std::vector<Waiter> waiters_;
  std::vector<User> users_;
};

}  // namespace spillway::plan::step
