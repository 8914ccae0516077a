#include "spillway/plan/step/transfers.h"

namespace spillway::plan::step {

Index add_transfer(StepGraph& graph, Lane lane, Phase phase, const Move& move, std::uint32_t deadline) {
  return graph.add(Task{.op = Op::transfer,
                        .lane = lane,
                        .what = move.what,
                        .from = move.from,
                        .to = move.to,
                        .bytes = move.bytes,
                        .deadline = deadline,
                        .when = {.phase = phase}});
}

Index add_read(StepGraph& graph, Object what, Place to, Bytes bytes, std::uint32_t deadline, Phase phase) {
  const auto task = add_transfer(graph, Lane::read, phase, {what, {}, to, bytes}, deadline);
  graph.fills(task, to.buffer);
  return task;
}

Index add_write(StepGraph& graph, Object what, Place from, Bytes bytes, std::uint32_t deadline, Phase phase) {
  const auto task = add_transfer(graph, Lane::write, phase, {what, from, {}, bytes}, deadline);
  graph.lets_go(task, from.buffer);
  return task;
}

RoundTrip add_round_trip(StepGraph& graph, BufferClass kind, const Activation& activation, const Journey& passes) {
  const auto& order = graph.order;
  const auto& [what, bytes] = activation;
  const auto needed = order.position(passes.needed);
  RoundTrip out{};
  out.away = graph.add_buffer(kind, bytes, order.position(passes.made), passes.left);
  out.write = add_write(graph, what, {out.away}, bytes, passes.left, Phase::backward);
  out.home = graph.add_buffer(kind, bytes, order.before_pass(passes.needed, graph.lookahead.backward), needed);
  out.read = add_read(graph, what, {out.home}, bytes, needed, Phase::backward);
  graph.need(out.read, out.write);
  graph.need(out.write, out.read, true);
  graph.need(graph.task_of(passes.needed), out.read);
  graph.out.activations.push_back(activation);
  return out;
}

void add_snapshot(StepGraph& graph, const SnapshotPart& part, Index c, Place from) {
  if (!graph.redo.gradients) return;
  const bool resident = graph.placement[c].device_resident();
  const auto& order = graph.order;
  const auto deadline = resident            ? order.device_after_update((graph.snapshots.*part.last)(c))
                        : graph.is_early(c) ? order.position(order.pass_of_gradient(c))
                                            : order.update(c) + order.positions();
  const Move move{{part.kind, c}, resident ? Place{} : from, {}, traits(part.kind).bytes(graph.rule, graph.chunk(c))};
  const auto write = add_transfer(graph, Lane::write, Phase::update, move, deadline);
  graph.out.tasks[write].when.every = graph.out.snapshot_every[c];
  graph.out.tasks[write].when.turn = graph.out.snapshot_turn[c];
  if (!resident) graph.brings(write, graph.find_event(c, ChunkEvent::snapshot_taken));
  graph.need(write, graph.find_event(c, part.updated));
  (graph.*part.writes)[c] = write;
}

void time_snapshots(StepGraph& graph) {
  auto& every = graph.out.snapshot_every;
  auto& turn = graph.out.snapshot_turn;
  every.assign(graph.chunks(), 0);
  turn.assign(graph.chunks(), 0);
  std::uint32_t next = 0;
  for (Index c = 0; c < graph.chunks() && graph.redo.gradients; ++c) {
    if (!graph.is_trainable(c)) continue;
    every[c] = graph.placement[c].state.in_memory() ? graph.redo.period : 1;
    if (!graph.placement[c].state.in_memory()) continue;
    turn[c] = graph.snapshots.with_before(c) ? turn[c - 1] : next++ % graph.redo.period;
  }
}

Index add_gradient_log(StepGraph& graph, Object what, Place from, Bytes bytes, std::uint32_t deadline) {
  const auto write = add_transfer(graph, Lane::write, Phase::backward, {what, from, {}, bytes}, deadline);
  if (from.any()) graph.out.buffers[from.buffer].earlier_tasks.push_back(write);
  return write;
}

Index add_upload(StepGraph& graph, Object what, Place from, Place to, Bytes bytes, Index pass) {
  const auto reader = graph.task_of(pass);
  const auto& buffers = graph.out.buffers;
  const Move move{what, from, to, bytes};
  const auto task =
      add_transfer(graph, Lane::to_device, graph.out.tasks[reader].when.phase, move, graph.order.position(pass));
  if (buffers[to.buffer].whole) graph.out.tasks[task].when.only = OnlyIf::changed_weights;
  graph.fills(task, to.buffer);
  if (!buffers[from.buffer].whole) graph.lets_go(task, from.buffer);
  graph.need(reader, task);
  return task;
}

Index add_download(StepGraph& graph, Object what, Place from, Place to, Bytes bytes, Index pass) {
  const auto deadline = graph.out.buffers[from.buffer].last;
  const auto task = add_transfer(graph, Lane::from_device, Phase::backward, {what, from, to, bytes}, deadline);
  graph.lets_go(task, from.buffer);
  graph.fills(task, to.buffer);
  graph.need(task, graph.task_of(pass));
  return task;
}

}  // namespace spillway::plan::step
