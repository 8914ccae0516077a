#include <algorithm>

#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/transfers.h"
#include "spillway/plan/step/weights.h"

namespace spillway::plan::step {
namespace {

/// What a pass reads once, and a device keeps, need not come again.
bool stays(const StepGraph& graph, Index c, Index pass) {
  return graph.copy_stays(c) && !graph.computes_on_host(pass);
}

/// Reads chunk c's weight to `to` for its update and its pass, and writes it after the update. What does not learn is
/// only read. Returns the read.
Index add_weight_round(StepGraph& graph, Index c, Place to, Index pass) {
  const auto bytes = graph.weight_bytes(c);
  const Object what{ObjectKind::weight, c};
  const auto read = add_read(graph, what, to, bytes, graph.order.update(c), Phase::forward);
  graph.out.tasks[read].stays = stays(graph, c, pass);
  graph.need(graph.task_of(pass), read);
  graph.out.groups[c].weight = to;
  if (!graph.learns(c)) return read;
  const auto write = add_write(graph, what, to, bytes, graph.order.after_update(c), Phase::update);
  graph.need(read, write, true);
  graph.need(write, graph.of(c, ChunkEvent::weight_updated));
  graph.brings(read, graph.of(c, ChunkEvent::weight_read));
  graph.write_weight[c] = write;
  return read;
}

void keep_weight(StepGraph& graph, Index c, Place there) {
  graph.out.groups[c].weight = there;
  if (graph.learns(c)) add_weight_snapshot(graph, c, there);
}

/// Position until which a pass and the writes after the updates of `count` chunks need what is read for them.
std::uint32_t until_written(const StepOrder& order, Index pass, Index first, std::size_t count) {
  const auto at = order.position(pass);
  return count == 0 ? at : std::max(at, order.after_update(static_cast<Index>(first + count - 1)));
}

Index add_window(StepGraph& graph, Bytes bytes, Index first, std::uint32_t last, Index pass) {
  const auto begin = graph.order.before_update(first, graph.lookahead.weight_read);
  const auto window = graph.add_buffer(BufferClass::window, bytes, begin, last);
  if (graph.computes_on_host(pass)) graph.lets_go(graph.task_of(pass), window);
  return window;
}

void bring_chunk(StepGraph& graph, Index c, Place place, Index pass, HostWeights& weights) {
  if (graph.residency.weight[c]) {
    keep_weight(graph, c, place);
  } else {
    weights.reads.push_back(add_weight_round(graph, c, place, pass));
  }
  graph.need(graph.task_of(pass), graph.out.update_task[c]);
}

void add_layer(StepGraph& graph, Index b, Index pass) {
  const auto& block = graph.block(b);
  const auto first = graph.chunk_of(b, 0);
  Bytes bytes = 0;
  for (Index i = 0; i < block.chunks; ++i) bytes += graph.weight_bytes(first + i);
  HostWeights weights;
  if (graph.residency.weight[first]) {
    weights.buffer = graph.add_whole(BufferClass::weight, bytes, graph.home(first));
    if (!graph.device_resident(first)) graph.out.resident_weight[b] = weights.buffer;
  } else {
    weights.buffer =
        add_window(graph, bytes, first, until_written(graph.order, pass, first, block.learning_chunks), pass);
  }
  Bytes offset = 0;
  for (Index c = first; c < first + block.chunks; ++c) {
    bring_chunk(graph, c, {weights.buffer, offset}, pass, weights);
    offset += graph.weight_bytes(c);
  }
  graph.set_weights(pass, std::move(weights));
}

}  // namespace

void add_slice_forward(StepGraph& graph, Index b, Index slice, Index pass, std::uint32_t until) {
  const auto c = graph.chunk_of(b, slice);
  const auto bytes = graph.weight_bytes(c);
  HostWeights weights;
  if (graph.residency.weight[c]) {
    weights.buffer = graph.add_whole(BufferClass::weight, bytes, graph.home(c));
    if (!graph.device_resident(c)) graph.out.resident_slice[c] = weights.buffer;
  } else {
    const auto written = until_written(graph.order, pass, c, graph.learns(c) ? 1 : 0);
    weights.buffer = add_window(graph, bytes, c, std::max(until, written), pass);
  }
  bring_chunk(graph, c, {weights.buffer}, pass, weights);
  graph.set_weights(pass, std::move(weights));
}

Index add_pass_read(StepGraph& graph, Index c, Place to, Index pass) {
  const auto phase = graph.out.tasks[graph.task_of(pass)].phase;
  const auto read =
      add_read(graph, {ObjectKind::weight, c}, to, graph.weight_bytes(c), graph.order.position(pass), phase);
  graph.out.tasks[read].stays = stays(graph, c, pass);
  graph.need(read, graph.write_weight[c]);
  graph.need(graph.task_of(pass), read);
  return read;
}

void add_forward(StepGraph& graph) {
  const auto& order = graph.order;
  for (std::size_t i = 0; i < order.layers.size(); ++i) add_layer(graph, order.layers[i], order.forward[i]);
  for (Index s = 0; s < order.embedding.size(); ++s) {
    add_slice_forward(graph, order.embedding_block, s, order.embedding[s]);
  }
}

}  // namespace spillway::plan::step
