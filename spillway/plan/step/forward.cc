#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/transfers.h"
#include "spillway/plan/step/weights.h"

namespace spillway::plan::step {
namespace {

/// Weights that a pass reads once, and a device keeps, need not come again. Each of several processes updates only its
/// own there, apart from the resident copy.
bool stays(const StepGraph& graph, Index c, Index pass) {
  const bool apart = graph.description.is_shared() && graph.placement[c].updated_there();
  return graph.placement[c].weight.has_device_copy() && !graph.computes_on_host(pass) && !apart;
}

/// The weight of chunk c, which this process keeps on a device, to where a gather sends it from for a pass.
Index add_own_download(StepGraph& graph, Index c, Place to, Index pass) {
  const auto update = graph.out.update_task[c];
  const Move move{{ObjectKind::weight, c}, graph.out.groups[c].weight, to, graph.weight_bytes(c)};
  const auto phase = graph.out.tasks[graph.task_of(pass)].when.phase;
  const auto task = add_transfer(graph, Lane::from_device, phase, move, graph.order.position(pass));
  graph.fills(task, to.buffer);
  graph.need(task, update);
  graph.need(update, task, true);
  graph.need(graph.task_of(pass), task);
  return task;
}

/// Brings the weight of chunk c, from a path or from a device, into a buffer for a pass that does not update it there.
Index add_pass_read(StepGraph& graph, Index c, Place to, Index pass) {
  if (graph.placement[c].device_resident()) return add_own_download(graph, c, to, pass);
  const auto phase = graph.out.tasks[graph.task_of(pass)].when.phase;
  const auto read =
      add_read(graph, {ObjectKind::weight, c}, to, graph.weight_bytes(c), graph.order.position(pass), phase);
  if (stays(graph, c, pass)) graph.out.tasks[read].when.only = OnlyIf::changed_weights;
  graph.need(read, graph.write_weight[c]);
  graph.need(graph.task_of(pass), read);
  return read;
}

/// Reads chunk c's weight to `to` for its update and its pass, and writes it after the update. What does not learn is
/// only read. Returns the read.
Index add_weight_round(StepGraph& graph, Index c, Place to, Index pass) {
  const auto bytes = graph.weight_bytes(c);
  const Object what{ObjectKind::weight, c};
  const auto read = add_read(graph, what, to, bytes, graph.order.update(c), Phase::forward);
  if (stays(graph, c, pass)) graph.out.tasks[read].when.only = OnlyIf::changed_weights;
  graph.need(graph.task_of(pass), read);
  graph.out.groups[c].weight = to;
  if (!graph.is_trainable(c)) return read;
  const auto write = add_write(graph, what, to, bytes, graph.order.after_update(c), Phase::update);
  graph.need(read, write, true);
  graph.need(write, graph.find_event(c, ChunkEvent::weight_updated));
  graph.brings(read, graph.find_event(c, ChunkEvent::weight_read));
  graph.write_weight[c] = write;
  return read;
}

void keep_weight(StepGraph& graph, Index c, Place there) {
  graph.out.groups[c].weight = there;
  if (graph.is_trainable(c)) add_snapshot(graph, kWeightPart, c, there);
}

/// `own`: where this process's weights of the block stay, apart from what passes read.
void bring_chunk(StepGraph& graph, Index c, Place place, Place& own, Index pass, HostWeights& weights) {
  if (!graph.is_mine(c)) return;  // a gather brings it
  if (own.any()) {
    keep_weight(graph, c, own);
    own.offset += graph.weight_bytes(c);
    if (graph.is_read(c)) weights.reads.push_back(add_pass_read(graph, c, place, pass));
  } else if (graph.placement[c].weight.in_memory()) {
    keep_weight(graph, c, place);
  } else {
    weights.reads.push_back(add_weight_round(graph, c, place, pass));
  }
  graph.need(graph.task_of(pass), graph.out.update_task[c]);
}

/// Adds the weights of a layer or of one slice, for its updates and the first pass that reads it. `resident`: its
/// buffer, where it stays on the host; else a window holds it `until` that position at least.
void add_weights(StepGraph& graph, Range chunks, Index& resident, Index pass, std::uint32_t until = 0) {
  Bytes bytes = 0, mine = 0;
  until = std::max(until, graph.order.position(pass));
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    bytes += graph.weight_bytes(c);
    mine += graph.is_mine(c) ? graph.weight_bytes(c) : 0;
    const bool updated_there = graph.is_trainable(c) && !graph.placement[c].weight.keeps_own();
    if (updated_there) until = std::max(until, graph.order.after_update(c));
  }
  HostWeights weights;
  const auto home = graph.placement[chunks.first].weight;
  Place own;
  if (home.in_memory() && !graph.stays(chunks.first) && mine > 0) {
    own = {graph.add_whole(BufferClass::weight, mine, home.kind)};
  }
  if (graph.stays(chunks.first)) {
    weights.buffer = graph.add_whole(BufferClass::weight, bytes, home.kind);
    if (home.on_host()) resident = weights.buffer;
  } else {
    const auto begin = graph.order.before_update(chunks.first, graph.lookahead.weight_read);
    weights.buffer = graph.add_buffer(BufferClass::window, bytes, begin, until);
    if (graph.computes_on_host(pass)) graph.lets_go(graph.task_of(pass), weights.buffer);
  }
  Place place{weights.buffer};
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    bring_chunk(graph, c, place, own, pass, weights);
    place.offset += graph.weight_bytes(c);
  }
  graph.set_weights(pass, std::move(weights));
}

/// Adds the weights of a layer that lives on the devices of several processes and is frozen in part. Each one has all
/// of them there, where passes read them in place; what is trainable, the first chunks, is sent and received through a
/// window on the host.
void add_weights_there(StepGraph& graph, Range chunks, Index pass) {
  const auto& block = graph.block(graph.chunk(chunks.first).block);
  Bytes bytes = 0, window = 0;
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    bytes += graph.weight_bytes(c);
    if (c < chunks.first + block.trainable_chunks) window = bytes;
  }
  Place there{graph.add_whole(BufferClass::weight, bytes, TierKind::device)};
  const auto begin = graph.order.before_update(chunks.first, graph.lookahead.weight_read);
  HostWeights weights{graph.add_buffer(BufferClass::window, window, begin, graph.order.position(pass)), {}};
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    if (graph.is_mine(c)) keep_weight(graph, c, there);
    if (graph.is_trainable(c)) {
      weights.reads.push_back(add_own_download(graph, c, {weights.buffer, there.offset}, pass));
      graph.need(graph.task_of(pass), graph.out.update_task[c]);
    }
    there.offset += graph.weight_bytes(c);
  }
  graph.set_weights(pass, std::move(weights));
}

}  // namespace

void add_slice_forward(StepGraph& graph, Index b, Index slice, Index pass, std::uint32_t until) {
  const auto c = graph.chunk_of(b, slice);
  add_weights(graph, {c, 1}, graph.out.resident_slice[c], pass, until);
}

void read_again(StepGraph& graph, Range chunks, Index pass, std::uint32_t ahead, std::uint32_t until) {
  Bytes bytes = 0;
  for (auto c = chunks.first; c < chunks.end(); ++c) bytes += graph.weight_bytes(c);
  const auto last = std::max(until, graph.order.position(pass));
  HostWeights weights{graph.add_buffer(BufferClass::window, bytes, graph.before_pass(pass, ahead), last), {}};
  if (graph.computes_on_host(pass)) graph.lets_go(graph.task_of(pass), weights.buffer);
  Place place{weights.buffer};
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    if (graph.is_read(c)) weights.reads.push_back(add_pass_read(graph, c, place, pass));
    place.offset += graph.weight_bytes(c);
  }
  graph.set_weights(pass, std::move(weights));
}

void add_forward(StepGraph& graph) {
  const auto& order = graph.order;
  for (std::size_t i = 0; i < order.layers.size(); ++i) {
    const auto b = order.layers[i];
    const Range chunks{graph.chunk_of(b, 0), static_cast<Index>(graph.block(b).chunks)};
    const bool in_place = graph.placement[chunks.first].device_resident() && graph.stays(chunks.first);
    if (in_place && graph.description.is_shared()) {
      add_weights_there(graph, chunks, order.forward[i]);
    } else {
      add_weights(graph, chunks, graph.out.resident_weight[b], order.forward[i]);
    }
  }
  for (Index s = 0; s < order.embedding.size(); ++s) {
    add_slice_forward(graph, order.embedding_block, s, order.embedding[s]);
  }
}

}  // namespace spillway::plan::step
