#include "spillway/plan/step/hops.h"

#include <algorithm>
#include <utility>

#include "spillway/plan/routes.h"

namespace spillway::plan::step {
namespace {

TierKind tier_of(const StepGraph& graph, const Place& place) {
  return place.any() ? graph.out.buffers[place.buffer].tier : TierKind::storage;
}

const Hop& hop_of(const StepGraph& graph, const Move& move) {
  const auto from = tier_of(graph, move.from), to = tier_of(graph, move.to);
  return hop_between(traits(to).on_host ? from : TierKind::host, to);
}

/// Adds the bytes of a leg to those of the step. Returns how many it takes time for, as they go both ways at once.
Bytes count_bytes(Schedule& out, Op leg, const Moved& moved) {
  out.network_sent += moved.sent;
  out.network_received += moved.received;
  out.sent_between += crosses(leg) ? moved.sent : 0;
  out.received_between += crosses(leg) ? moved.received : 0;
  return std::max(moved.sent, moved.received);
}

}  // namespace

const Hop& hop_between(TierKind from, TierKind to) {
  return *std::ranges::find_if(kHops, [&](const Hop& it) { return it.from == from && it.to == to; });
}

std::uint32_t around_pass(const StepGraph& graph, const Hop& hop, Index pass) {
  return (graph.order.*hop.around_pass)(pass);
}

std::uint32_t around_update(const StepGraph& graph, const Hop& hop, Index chunk) {
  return (graph.order.*hop.around_update)(chunk);
}

std::uint32_t window_begin(const StepGraph& graph, Index pass) {
  const auto from = [&](TierKind tier) { return around_pass(graph, hop_between(tier, TierKind::host), pass); };
  const auto begin = from(TierKind::storage);
  return graph.description.is_shared() ? std::min(begin, from(TierKind::peer)) : begin;
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

Index add_transfer(StepGraph& graph, Phase phase, const Move& move, std::uint32_t deadline) {
  const auto& hop = hop_of(graph, move);
  return graph.add(Task{.op = hop.legs.front(),
                        .lane = hop.lane,
                        .what = move.what,
                        .from = move.from,
                        .to = move.to,
                        .bytes = move.bytes,
                        .deadline = deadline,
                        .when = {.phase = phase}});
}

Index add_hop(StepGraph& graph, Phase phase, const Move& move, std::uint32_t deadline) {
  const auto task = add_transfer(graph, phase, move, deadline);
  const auto& buffers = graph.out.buffers;
  if (move.to.any()) graph.fills(task, move.to.buffer);
  if (move.from.any() && !buffers[move.from.buffer].whole) graph.lets_go(task, move.from.buffer);
  return task;
}

Index bring_to_pass(StepGraph& graph, const Move& move, Index pass, bool asks) {
  const auto reader = graph.task_of(pass);
  const auto task = add_hop(graph, graph.out.tasks[reader].when.phase, move, graph.order.position(pass));
  if (graph.out.buffers[move.to.buffer].whole) graph.out.tasks[task].when.only = OnlyIf::changed_weights;
  if (asks) {
    graph.out.passes[pass].asks.push_back(task);
    graph.lets_go(task, move.to.buffer);  // the pass may end first, and whatever takes the bytes next waits for both
  } else {
    graph.need(reader, task);
  }
  return task;
}

Index take_from_pass(StepGraph& graph, const Move& move, Index pass) {
  const auto task = add_hop(graph, Phase::backward, move, graph.out.buffers[move.from.buffer].last);
  graph.need(task, graph.task_of(pass));
  return task;
}

void Moved::add(Op leg, const state::World& world, std::size_t owner, Bytes bytes) {
  each_hop(leg, world, owner, [&](std::size_t, bool sends) { add(sends, bytes); });
}

Legs add_legs(StepGraph& graph, const Hop& hop, const Task& task, const CountMoved& count) {
  Legs out;
  for (const auto leg : hop.legs) {
    if (!has_hops(leg, graph.description.world)) continue;
    Moved moved;
    count(leg, moved);
    auto next = task;
    next.op = leg;
    next.lane = hop.lane;
    next.bytes = count_bytes(graph.out, leg, moved);
    next.between = crosses(leg) ? next.bytes : 0;
    const auto added = graph.add(std::move(next));
    graph.need(added, out.last);
    graph.out.network.push_back(added);
    out = {out.first != kNone ? out.first : added, added};
  }
  return out;
}

}  // namespace spillway::plan::step
