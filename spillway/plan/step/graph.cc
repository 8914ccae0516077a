#include "spillway/plan/step/graph.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

namespace spillway::plan::step {
namespace {

/// Tasks of a chunk in many a step, so that few schedules outgrow what is reserved.
constexpr std::size_t kReserved = 8;
/// And what most of them wait for.
constexpr std::size_t kNeeds = 4;

}  // namespace

StepGraph::StepGraph(StepInputs inputs) : StepInputs(std::move(inputs)) {
  const auto n = layout.chunks().size(), passes = order.passes().size();
  out.tasks.reserve(kReserved * n);
  out.buffers.reserve(kReserved / 2 * n);
  out.passes = order.passes();
  out.positions = order.positions();
  out.add_chunks(n);
  for (auto* list : {&write_weight, &write_grad, &snapshot_weight, &snapshot_state}) list->assign(n, kNone);
  gradients.assign(n, {});
  host_weights.assign(passes, {});
  for (auto* list : {&gathers, &downloads}) list->assign(passes, kNone);
  scatters.assign(passes, {});
  for (Index c = 0; c < n; ++c) {
    if (is_trainable(c)) updates.push_back(c);
  }
}

void StepGraph::place_copy(Index c, Place there) {
  out.changes.resize(chunks());
  out.changes[c].weight = there;
}

Index StepGraph::add(Task task) {
  task.needs.reserve(kNeeds);
  out.tasks.push_back(std::move(task));
  return static_cast<Index>(out.tasks.size() - 1);
}

Index StepGraph::add(Buffer buffer) {
  out.buffers.push_back(std::move(buffer));
  return static_cast<Index>(out.buffers.size() - 1);
}

Index StepGraph::add_buffer(BufferClass kind, Bytes bytes, std::uint32_t first, std::uint32_t last, TierKind tier) {
  return add(Buffer{.kind = kind, .tier = tier, .bytes = bytes, .first = first, .last = last});
}

Index StepGraph::add_whole(BufferClass kind, Bytes bytes, TierKind tier) {
  return add(Buffer{.kind = kind, .tier = tier, .bytes = bytes, .whole = true});
}

void StepGraph::need(Index task, Index on, bool previous) {
  if (task != kNone && on != kNone) out.tasks[task].needs.push_back({on, previous});
}

void StepGraph::need(Index task, Event on, bool previous) {
  if (task != kNone) waiters_.push_back({task, on, previous});
}

void StepGraph::brings(Index task, Event event, bool previous) {
  bringers_.push_back({event.number, task, previous});
}

Event StepGraph::find_event(Index chunk, ChunkEvent event) const {
  return {static_cast<Index>(chunk * kChunkEvents + static_cast<std::size_t>(event))};
}

void StepGraph::add_weights(Index pass, Range chunks, HostWeights weights) {
  out.passes[pass].weights.push_back({chunks, computes_on_host(pass) ? weights.buffer : kNone});
  host_weights[pass].push_back(std::move(weights));
}

Schedule StepGraph::freeze() && {
  std::ranges::stable_sort(bringers_, {}, &Bringer::event);
  std::vector<std::size_t> first(layout.chunks().size() * kChunkEvents + 1, 0);
  for (const auto& it : bringers_) ++first[it.event + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  const auto of = [&](Event event) {
    return std::span(bringers_).subspan(first[event.number], first[event.number + 1] - first[event.number]);
  };
  for (const auto& it : waiters_) {
    for (const auto& by : of(it.on)) need(it.task, by.task, it.previous || by.previous);
  }
  for (const auto& it : users_) {
    for (const auto& by : of(it.last)) lets_go(by.task, it.buffer);
  }
  return std::move(out);
}

}  // namespace spillway::plan::step
