#include "spillway/plan/step/transfers.h"

namespace spillway::plan::step {
namespace {

void add_snapshot(StepGraph& graph, ObjectKind kind, Index c, Place from, Bytes bytes, Index last_of_copy) {
  if (!graph.redo.gradients) return;
  const bool weight = kind == ObjectKind::weight;
  const bool resident = graph.device_resident(c);
  const auto& order = graph.order;
  const auto deadline = resident            ? order.device_after_update(last_of_copy)
                        : graph.is_early(c) ? order.position(order.pass_of_gradient(c))
                                            : order.update(c) + order.positions();
  const auto write = graph.add(Task{.op = Op::transfer,
                                    .lane = Lane::write,
                                    .what = {kind, c},
                                    .from = resident ? Place{} : from,
                                    .bytes = bytes,
                                    .deadline = deadline,
                                    .phase = Phase::update,
                                    .every = graph.out.image_every[c],
                                    .turn = graph.out.image_turn[c]});
  graph.need(write, graph.of(c, weight ? ChunkEvent::weight_updated : ChunkEvent::state_updated));
  if (!resident) graph.brings(write, graph.of(c, ChunkEvent::snapshot_taken));
  (weight ? graph.snapshot_weight : graph.snapshot_state)[c] = write;
}

}  // namespace

Index add_read(StepGraph& graph, Object what, Place to, Bytes bytes, std::uint32_t deadline, Phase phase) {
  const auto task = graph.add(Task{.op = Op::transfer,
                                   .lane = Lane::read,
                                   .what = what,
                                   .to = to,
                                   .bytes = bytes,
                                   .deadline = deadline,
                                   .phase = phase});
  graph.fills(task, to.buffer);
  return task;
}

Index add_write(StepGraph& graph, Object what, Place from, Bytes bytes, std::uint32_t deadline, Phase phase) {
  const auto task = graph.add(Task{.op = Op::transfer,
                                   .lane = Lane::write,
                                   .what = what,
                                   .from = from,
                                   .bytes = bytes,
                                   .deadline = deadline,
                                   .phase = phase});
  graph.lets_go(task, from.buffer);
  return task;
}

void add_weight_snapshot(StepGraph& graph, Index c, Place from) {
  add_snapshot(graph, ObjectKind::weight, c, from, graph.weight_bytes(c), graph.snapshots.last_weight(c));
}

void add_state_snapshot(StepGraph& graph, Index c, Place from) {
  add_snapshot(graph, ObjectKind::state, c, from, graph.state_bytes(c), graph.snapshots.last_state(c));
}

void time_snapshots(StepGraph& graph) {
  auto& every = graph.out.image_every;
  auto& turn = graph.out.image_turn;
  every.assign(graph.chunks(), 0);
  turn.assign(graph.chunks(), 0);
  std::uint32_t next = 0;
  for (Index c = 0; c < graph.chunks() && graph.redo.gradients; ++c) {
    if (!graph.learns(c)) continue;
    every[c] = graph.residency.state[c] ? graph.redo.period : 1;
    if (!graph.residency.state[c]) continue;
    turn[c] = graph.snapshots.with_before(c) ? turn[c - 1] : next++ % graph.redo.period;
  }
}

Index add_gradient_log(StepGraph& graph, Object what, Place from, Bytes bytes, std::uint32_t deadline) {
  const auto write = graph.add(Task{.op = Op::transfer,
                                    .lane = Lane::write,
                                    .what = what,
                                    .from = from,
                                    .bytes = bytes,
                                    .deadline = deadline,
                                    .phase = Phase::backward});
  if (from.any()) graph.out.buffers[from.buffer].earlier_tasks.push_back(write);
  return write;
}

Index add_upload(StepGraph& graph, Object what, Place from, Place to, Bytes bytes, Index pass) {
  const auto task = graph.add(Task{.op = Op::transfer,
                                   .lane = Lane::to_device,
                                   .what = what,
                                   .from = from,
                                   .to = to,
                                   .bytes = bytes,
                                   .deadline = graph.order.position(pass),
                                   .phase = graph.out.tasks[graph.task_of(pass)].phase,
                                   .stays = graph.out.buffers[to.buffer].whole});
  graph.fills(task, to.buffer);
  if (!graph.out.buffers[from.buffer].whole) graph.lets_go(task, from.buffer);
  graph.need(graph.task_of(pass), task);
  return task;
}

Index add_download(StepGraph& graph, Object what, Place from, Place to, Bytes bytes, Index pass) {
  const auto task = graph.add(Task{.op = Op::transfer,
                                   .lane = Lane::from_device,
                                   .what = what,
                                   .from = from,
                                   .to = to,
                                   .bytes = bytes,
                                   .deadline = graph.out.buffers[from.buffer].last,
                                   .phase = Phase::backward});
  graph.lets_go(task, from.buffer);
  graph.fills(task, to.buffer);
  graph.need(task, graph.task_of(pass));
  return task;
}

}  // namespace spillway::plan::step
