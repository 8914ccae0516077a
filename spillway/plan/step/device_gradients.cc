#include <algorithm>

#include "spillway/plan/coalesced.h"
#include "spillway/plan/step/passes.h"
#include "spillway/plan/step/transfers.h"

namespace spillway::plan::step {
namespace {

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
  const auto until = graph.order.device_after(p);
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
                                      graph.order.device_after(p), TierKind::device);
  graph.out.passes[p][Operand::gradient] = there;
  graph.fills(graph.task_of(p), there);
  for (const auto& it : copies(graph, graph.out.passes[p])) {
    const auto copy = add_download(graph, {ObjectKind::gradient, it.chunks.first, it.chunks.count}, {there, it.at},
                                   {host, it.at}, it.bytes, p);
    for (auto c = it.chunks.first; c < it.chunks.end(); ++c) {
      graph.brings(copy, graph.find_event(c, ChunkEvent::gradient_complete));
      if (graph.out.groups[c].grad.buffer == host)
        graph.brings(copy, graph.find_event(c, ChunkEvent::gradient_ready), true);
    }
  }
}

/// The gradient of the embedding's output goes to the host.
void hand_over_hidden(StepGraph& graph) {
  const auto user = graph.order.embedding_backward;
  if (user == kNone) return;
  const auto from = graph.out.passes[user][Operand::hidden_gradient];
  if (from == kNone) return;
  const auto bytes = graph.out.buffers[from].bytes;
  const auto maker = user - 1;
  const auto to =
      graph.add_buffer(BufferClass::scratch, bytes, graph.order.position(maker), graph.order.position(user));
  graph.lets_go(graph.task_of(user), to);
  const auto copy = add_download(graph, {ObjectKind::hidden_gradient}, {from}, {to}, bytes, maker);
  graph.need(graph.task_of(user), copy);
  graph.out.passes[user][Operand::hidden_gradient] = to;
}

}  // namespace

void add_device_gradients(StepGraph& graph) {
  for (Index p = 0; p < graph.out.passes.size(); ++p) {
    if (graph.grads[p] == kNone || graph.scatters[p] != kNone) continue;
    const bool stays = graph.placement[chunks_of(graph.layout, graph.out.passes[p]).first].gradient_there();
    stays ? log_gradient(graph, p) : take_gradient(graph, p);
  }
  hand_over_hidden(graph);
}

}  // namespace spillway::plan::step
