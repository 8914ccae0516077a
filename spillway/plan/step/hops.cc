#include "spillway/plan/step/hops.h"

#include <algorithm>
#include <utility>

namespace spillway::plan::step {
namespace {

const Hop& hop_by(Lane lane) {
  return *std::ranges::find(kHops, lane, &Hop::lane);
}

}  // namespace

const Hop& hop_between(TierKind from, TierKind to) {
  return *std::ranges::find_if(kHops, [&](const Hop& it) { return it.from == from && it.to == to; });
}

std::uint32_t around_pass(const StepGraph& graph, Lane lane, Index pass) {
  return (graph.order.*hop_by(lane).around_pass)(pass);
}

std::uint32_t around_update(const StepGraph& graph, Lane lane, Index chunk) {
  return (graph.order.*hop_by(lane).around_update)(chunk);
}

std::vector<Hop> hops_between(TierKind from, TierKind to) {
  if (from == to) return {};
  if (traits(from).on_host || traits(to).on_host) return {hop_between(from, to)};
  return {hop_between(from, TierKind::host), hop_between(TierKind::host, to)};
}

std::vector<Coalesced> parts_of(const StepGraph& graph, const Hop& hop, Range chunks, const ChunkBytes& bytes,
                                const Separate& separate) {
  if (hop.coalesces) return coalesce(chunks, graph.lookahead.coalesce_to, bytes, separate);
  return coalesce(chunks, 0, bytes, [](Index) { return true; });
}

const Hop& back_of(const Hop& hop) {
  return hop_between(hop.to, hop.from);
}

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

Index add_hop(StepGraph& graph, Lane lane, Phase phase, const Move& move, std::uint32_t deadline) {
  const auto task = add_transfer(graph, lane, phase, move, deadline);
  const auto& buffers = graph.out.buffers;
  if (move.to.any()) graph.fills(task, move.to.buffer);
  if (move.from.any() && !buffers[move.from.buffer].whole) graph.lets_go(task, move.from.buffer);
  return task;
}

Index bring_to_pass(StepGraph& graph, Lane lane, const Move& move, Index pass, bool asks) {
  const auto reader = graph.task_of(pass);
  const auto task = add_hop(graph, lane, graph.out.tasks[reader].when.phase, move, graph.order.position(pass));
  if (graph.out.buffers[move.to.buffer].whole) graph.out.tasks[task].when.only = OnlyIf::changed_weights;
  if (asks) {
    graph.out.passes[pass].asks.push_back(task);
    graph.lets_go(task, move.to.buffer);  // the pass may end first, and whatever takes the bytes next waits for both
  } else {
    graph.need(reader, task);
  }
  return task;
}

Index take_from_pass(StepGraph& graph, Lane lane, const Move& move, Index pass) {
  const auto task = add_hop(graph, lane, Phase::backward, move, graph.out.buffers[move.from.buffer].last);
  graph.need(task, graph.task_of(pass));
  return task;
}

}  // namespace spillway::plan::step
