#include "spillway/plan/step/network.h"

#include <algorithm>
#include <set>

#include "spillway/plan/step/passes.h"

namespace spillway::plan::step {
namespace {

/// A transfer that others wait for may be of nothing here.
constexpr Bytes kLeast = 64;

Index add_task(StepGraph& graph, Op op, Index pass, Bytes sent, Bytes received) {
  graph.out.network_sent += sent;
  graph.out.network_received += received;
  const auto& of = graph.out.tasks[graph.task_of(pass)];
  return graph.add(Task{.op = op,
                        .lane = Lane::network,
                        .what = {ObjectKind::pass, pass},
                        .bytes = std::max(sent, received),
                        .deadline = graph.order.position(pass) + (op == Op::scatter ? 1 : 0),
                        .phase = of.phase});
}

/// The weights of a pass that other processes have, to the window or to the copy that stays here. Sends this process's
/// own once they are updated.
void add_gather(StepGraph& graph, Index pass) {
  const auto chunks = chunks_of(graph.layout, graph.out.passes[pass]);
  const auto others = graph.description.world.size - 1;
  Bytes sent = 0, received = 0;
  bool any = false;
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    if (!state::is_trainable(graph.chunk(c).training)) continue;
    any = true;
    (graph.is_mine(c) ? sent : received) += graph.weight_bytes(c) * (graph.is_mine(c) ? others : 1);
  }
  if (!any) return;
  const auto task = add_task(graph, Op::gather, pass, sent, received);
  for (auto c = chunks.first; c < chunks.end(); ++c) graph.need(task, graph.out.update_task[c]);
  const auto& weights = graph.host_weights[pass];
  for (const auto read : weights.reads) graph.need(task, read);
  if (!graph.out.buffers[weights.buffer].whole) graph.fills(task, weights.buffer);
  graph.need(graph.task_of(pass), task);
}

/// What a task of the network comes after, the same on every process: it follows from the order of passes alone.
/// Weights for a backward pass are sent before the sums of the pass before it, so that they come while that one
/// computes.
std::uint32_t turn_of(const StepGraph& graph, const Task& task) {
  const auto at = 2 * graph.order.position(task.what.index);
  if (task.op == Op::scatter) return at + 1;
  return task.phase == Phase::backward ? at - 2 : at;
}

}  // namespace

std::uint32_t sent_until(const StepGraph& graph, Index pass) {
  const auto later = graph.order.position(pass) + std::max(1U, graph.lookahead.grad_write);
  return std::min(later, graph.order.positions() - 1);
}

void add_scatter(StepGraph& graph, Index pass, std::uint64_t values, std::uint64_t mine) {
  const auto& description = graph.description;
  const auto sums = most_received(description.virtual_ranks, description.micro_batches, description.world.size);
  const Bytes sent = (values - mine) * sizeof(float), received = sums * mine * sizeof(float);
  const auto task = graph.scatters[pass] = add_task(graph, Op::scatter, pass, sent, received);
  graph.need(task, graph.task_of(pass));
  const auto buffer = graph.out.passes[pass].received = graph.add_buffer(
      BufferClass::scratch, std::max(received, kLeast), graph.order.position(pass), sent_until(graph, pass));
  graph.fills(task, buffer);
  graph.lets_go(task, buffer);
}

Index add_row_scatter(StepGraph& graph, Index pass) {
  const auto& description = graph.description;
  if (!description.is_shared()) return graph.task_of(pass);
  const auto row = graph.block(graph.out.passes[pass].block).columns * sizeof(float);
  const auto sent = std::max(description.tokens * row, kLeast),
             received = std::max(description.all_tokens() * row, kLeast);
  const auto task = graph.scatters[pass] = add_task(graph, Op::scatter, pass, sent, sent);
  graph.need(task, graph.task_of(pass));
  for (const auto head : graph.order.head_gradient) {
    if (description.tied_head) graph.need(task, graph.scatters[head]);
  }
  const auto at = graph.order.position(pass);
  auto& out = graph.out;
  out.sent_rows = graph.add_buffer(BufferClass::scratch, sent, at, sent_until(graph, pass));
  out.received_rows = graph.add_buffer(BufferClass::scratch, received, at, sent_until(graph, pass));
  graph.fills(graph.task_of(pass), out.sent_rows);
  graph.fills(task, out.received_rows);
  for (const auto buffer : {out.sent_rows, out.received_rows}) graph.lets_go(task, buffer);
  return task;
}

void add_network(StepGraph& graph) {
  if (!graph.description.is_shared()) return;
  std::set<Index> gathered;
  for (Index p = 0; p < graph.out.passes.size(); ++p) {
    const auto weights = graph.host_weights[p].buffer;
    if (weights != kNone && gathered.insert(weights).second) add_gather(graph, p);
  }
  auto& order = graph.out.network;
  for (Index t = 0; t < graph.out.tasks.size(); ++t) {
    if (graph.out.tasks[t].lane == Lane::network) order.push_back(t);
  }
  std::ranges::sort(order, {}, [&](Index t) {
    const auto& task = graph.out.tasks[t];
    return std::pair(turn_of(graph, task), task.what.index);
  });
}

}  // namespace spillway::plan::step
