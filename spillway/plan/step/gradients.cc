#include "spillway/plan/step/gradients.h"

#include <algorithm>

#include "spillway/plan/coalesced.h"
#include "spillway/plan/step/hops.h"
#include "spillway/plan/step/network.h"
#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/refits.h"
#include "spillway/plan/step/snapshots.h"
#include "spillway/plan/step/uses.h"

namespace spillway::plan::step {
namespace {

constexpr Bytes kPage = 4096;

/// The update of chunk c as soon as its gradient is complete, and room for what it changes until the step ends.
void add_early(StepGraph& graph, Index c, Index pass, Place grad) {
  if (!graph.is_early(c)) return;
  const auto at = graph.order.position(pass);
  const auto update = graph.out.update_task[c];
  const auto task = graph.add(Task{.op = Op::update,
                                   .lane = Lane::update,
                                   .unit = graph.out.tasks[update].unit,
                                   .what = {ObjectKind::chunk, c},
                                   .bytes = graph.out.tasks[update].bytes,
                                   .deadline = at,
                                   .when = {.phase = Phase::early}});
  const auto bytes = graph.weight_bytes(c) + graph.out.buffers[graph.out.resident_state[c]].bytes;
  const auto undo = graph.add_buffer(BufferClass::undo, bytes, at, graph.order.positions() - 1);
  graph.fills(task, undo);
  graph.lets_go(task, undo);
  if (!graph.placement[c].gradient.in_memory()) graph.lets_go(task, grad.buffer);
  graph.need(task, graph.find_event(c, ChunkEvent::gradient_complete));
  graph.need(task, graph.find_event(c, ChunkEvent::snapshot_taken));
  graph.need(update, task, true);
  graph.out.early[c] = {.task = task, .undo = undo, .grad = grad};
}

/// To a path, until the update or, where it stays, so that a step is durable.
void write_gradient(StepGraph& graph, Index c, Index pass, Place grad, std::uint32_t leave) {
  const Object what{ObjectKind::gradient, c};
  const auto bytes = graph.grad_bytes(c);
  auto& write = graph.write_grad[c];
  if (!graph.placement[c].gradient.in_memory()) {
    write = add_hop(graph, Lane::write, Phase::backward, {what, grad, {}, bytes}, leave);
  } else if (!graph.redo.gradients) {
    return;
  } else if (graph.placement[c].gradient_there()) {
    write = add_gradient_log(graph, what, {}, bytes, around_pass(graph, Lane::from_device, pass));
  } else {
    write = add_gradient_log(graph, what, grad, bytes, graph.order.positions());
    // The update of a tied table puts rows into it.
    const bool gathered = traits(graph.block(graph.out.passes[pass].block).role).is_gathered;
    if (gathered) graph.need(graph.out.update_task[c], write, true);
  }
  graph.need(write, graph.find_event(c, ChunkEvent::gradient_complete));
}

/// The sums that a device has made of a pass's gradients, to the buffer on the host that the scatter sends from, which
/// is returned.
Index add_sums_download(StepGraph& graph, Index pass, Place from, Bytes bytes) {
  const auto to = graph.add_buffer(BufferClass::scratch, bytes, graph.order.position(pass), sent_until(graph, pass));
  const auto chunks = chunks_of(graph.layout, graph.out.passes[pass]);
  const Object what{ObjectKind::gradient, chunks.first, chunks.count};
  graph.downloads[pass] = take_from_pass(graph, Lane::from_device, {what, from, {to}, bytes}, pass);
  graph.need(graph.first_scatters[pass], graph.downloads[pass]);
  return to;
}

void add_sums(StepGraph& graph, Index pass, std::uint64_t values) {
  const auto sums = graph.description.gradient_sums();
  if (sums == 0) return;
  const auto at = graph.order.position(pass);
  const auto last = graph.scatters[pass] == kNone ? at : sent_until(graph, pass);
  const auto bytes = sums * values * sizeof(float);
  const auto sum = graph.add_buffer(BufferClass::scratch, bytes, at, last, graph.compute_tier());
  graph.fills(graph.task_of(pass), sum);
  graph.out.passes[pass][Operand::gradient_sums] = sum;
  const bool crosses = graph.scatters[pass] != kNone && !graph.computes_on_host(pass);
  const auto sent = crosses ? add_sums_download(graph, pass, {sum}, bytes) : sum;
  if (graph.scatters[pass] != kNone) graph.out.passes[pass][Operand::sent_sums] = sent;
  graph.lets_go(graph.maker_of(pass), sent);
}

void add_chunk_gradient(StepGraph& graph, Index c, Index pass, Place grad, std::uint32_t leave) {
  if (graph.completes_on_host(pass))
    graph.brings(graph.maker_of(pass), graph.find_event(c, ChunkEvent::gradient_complete));
  write_gradient(graph, c, pass, grad, leave);
  if (graph.placement[c].gradient.in_memory()) {
    graph.out.groups[c].grad = grad;
    graph.lets_go(graph.find_event(c, ChunkEvent::gradient_used), grad.buffer);
  } else {
    stage_gradient(graph, c);
  }
  add_early(graph, c, pass, grad);
  if (graph.chunk(c).reduced.any()) add_refit(graph, c, pass, grad);
}

/// Gradients of neighbours that a pass makes, by copies of so many bytes.
std::vector<Coalesced> copies(const StepGraph& graph, const Pass& pass) {
  auto chunks = chunks_of(graph.layout, pass);
  chunks.count = std::min(chunks.count, static_cast<Index>(graph.block(pass.block).trainable_chunks));
  return coalesce(chunks, graph.lookahead.coalesce_to, [&](Index c) { return graph.grad_bytes(c); });
}

/// A gradient that stays until the update; what a durable step keeps of it is a copy.
void log_gradient(StepGraph& graph, Index p) {
  const auto pass = graph.out.passes[p];
  if (graph.write_grad[chunks_of(graph.layout, pass).first] == kNone) return;
  const auto until = around_pass(graph, Lane::from_device, p);
  const auto staging =
      graph.add_buffer(BufferClass::grad, graph.out.buffers[pass[Operand::gradient]].bytes, pass.position, until);
  for (const auto& it : copies(graph, pass)) {
    const Move move{{ObjectKind::gradient, it.chunks.first, it.chunks.count},
                    {pass[Operand::gradient], it.at},
                    {staging, it.at},
                    it.bytes};
    const auto copy = add_transfer(graph, Lane::from_device, Phase::backward, move, until);
    graph.need(copy, pass.task);
    graph.out.buffers[pass[Operand::gradient]].earlier_tasks.push_back(copy);
    graph.fills(copy, staging);
    auto at = it.at;
    for (auto c = it.chunks.first; c < it.chunks.end(); ++c) {
      graph.brings(copy, graph.find_event(c, ChunkEvent::gradient_complete));
      graph.place(graph.write_grad[c], {staging, at});
      graph.lets_go(graph.write_grad[c], staging);
      at += graph.grad_bytes(c);
    }
  }
}

/// To where the host has it.
void take_gradient(StepGraph& graph, Index p) {
  const auto host = graph.grads[p];
  const auto there = graph.add_buffer(BufferClass::grad, graph.out.buffers[host].bytes, graph.order.position(p),
                                      around_pass(graph, Lane::from_device, p), TierKind::device);
  graph.out.passes[p][Operand::gradient] = there;
  graph.fills(graph.task_of(p), there);
  for (const auto& it : copies(graph, graph.out.passes[p])) {
    const Object what{ObjectKind::gradient, it.chunks.first, it.chunks.count};
    const auto copy = take_from_pass(graph, Lane::from_device, {what, {there, it.at}, {host, it.at}, it.bytes}, p);
    for (auto c = it.chunks.first; c < it.chunks.end(); ++c) {
      graph.brings(copy, graph.find_event(c, ChunkEvent::gradient_complete));
      if (graph.out.groups[c].grad.buffer == host)
        graph.brings(copy, graph.find_event(c, ChunkEvent::gradient_ready), true);
    }
  }
}

}  // namespace

Index add_gradient_log(StepGraph& graph, Object what, Place from, Bytes bytes, std::uint32_t deadline) {
  const auto write = add_transfer(graph, Lane::write, Phase::backward, {what, from, {}, bytes}, deadline);
  if (from.any()) graph.out.buffers[from.buffer].earlier_tasks.push_back(write);
  return write;
}

void add_gradient(StepGraph& graph, Index pass, Index first, std::size_t chunks) {
  const auto& order = graph.order;
  const auto end = static_cast<Index>(first + chunks);
  std::uint64_t values = 0, mine = 0;
  Bytes bytes = 0;
  auto own = first;  // the first chunk that this process has; where it has none, any
  for (auto c = end; c-- > first;) {
    values += graph.chunk(c).gradient_elements;
    if (!graph.is_mine(c)) continue;
    own = c;
    mine += graph.chunk(c).gradient_elements;
    bytes += graph.grad_bytes(c);
  }
  if (graph.description.is_shared()) add_scatter(graph, pass, {first, static_cast<Index>(chunks)});
  const auto at = order.position(pass);
  const auto leave = mine == 0 ? sent_until(graph, pass)
                     : graph.placement[own].gradient.in_memory()
                         ? order.update(end - 1)
                         : std::min(at + graph.lookahead.grad_write, order.positions() - 1);
  const bool there = graph.placement[first].gradient_there();
  const auto grad = graph.add_buffer(BufferClass::grad, std::max<Bytes>(bytes, mine == 0 ? kPage : 0), at, leave,
                                     there ? TierKind::device : TierKind::host);
  graph.out.buffers[grad].node = graph.placement[first].gradient.node;
  graph.grads[pass] = grad;
  if (there || graph.completes_on_host(pass)) {
    graph.fills(graph.maker_of(pass), grad);
    graph.out.passes[pass][Operand::gradient] = grad;
  }
  if (mine == 0) graph.lets_go(graph.maker_of(pass), grad);
  add_sums(graph, pass, values);
  Bytes offset = 0;
  for (auto c = first; c < end; ++c) {
    if (!graph.is_mine(c)) {
      if (graph.chunk(c).reduced.any()) add_refit(graph, c, pass, {});
      continue;
    }
    add_chunk_gradient(graph, c, pass, {grad, offset}, leave);
    offset += graph.grad_bytes(c);
  }
  if (graph.computes_on_host(pass) || graph.scatters[pass] != kNone) return;
  there ? log_gradient(graph, pass) : take_gradient(graph, pass);
}

void stage_gradient(StepGraph& graph, Index c) {
  const auto update = graph.out.update_task[c];
  const auto bytes = graph.grad_bytes(c);
  const auto at = graph.order.update(c);
  const bool dense = has_dense_grad(graph.description, graph.layout, c);
  const auto first = dense ? graph.order.before_update(c, graph.lookahead.weight_read) : at;
  const Place there{graph.add_buffer(BufferClass::staging, bytes, first, at)};
  graph.out.groups[c].grad = there;
  graph.lets_go(graph.find_event(c, ChunkEvent::gradient_used), there.buffer);
  if (!dense) return graph.fills(update, there.buffer);
  const auto read = add_hop(graph, Lane::read, Phase::update, {{ObjectKind::gradient, c}, {}, there, bytes}, at);
  graph.need(read, graph.write_grad[c], true);
  graph.brings(read, graph.find_event(c, ChunkEvent::gradient_ready));
}

void add_gradients(StepGraph& graph) {
  for (const auto& use : gradients_of(graph.order, graph.layout)) {
    add_gradient(graph, use.made, use.chunks.first, use.chunks.count);
  }
}

}  // namespace spillway::plan::step
