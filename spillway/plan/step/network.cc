#include "spillway/plan/step/network.h"

#include <algorithm>

#include "spillway/plan/routes.h"

namespace spillway::plan::step {
namespace {

/// A transfer that others wait for may be of nothing here.
constexpr Bytes kLeast = 64;

/// Partial sums of each gradient in the largest step that each process sends: its own, or those of its machine.
std::vector<unsigned> partials_of_all(const Description& description, Op op) {
  const VirtualRanks ranks(description.virtual_ranks, description.micro_batches);
  const auto& world = description.world;
  std::vector<unsigned> out;
  for (std::size_t process = 0; process < world.size; ++process) {
    const auto of = crosses(op) ? ranks.restrict_to(world.machine_of(process), world.machines())
                                : ranks.restrict_to(process, world.size);
    out.push_back(of.partials());
  }
  return out;
}

/// Sums that arrive of each gradient which others send here, in any step.
unsigned most_arriving(const Description& description, Op op) {
  const auto& world = description.world;
  const auto size = crosses(op) ? world.machines() : world.size, members = crosses(op) ? size : world.local;
  return most_received(description.virtual_ranks, description.micro_batches, size, members);
}

Index add_task(StepGraph& graph, Op op, Index pass, const Moved& moved) {
  const auto bytes = count_moved(graph.out, op, moved);
  const auto& of = graph.out.tasks[graph.task_of(pass)];
  return graph.add(Task{.op = op,
                        .lane = Lane::network,
                        .what = {ObjectKind::pass, pass},
                        .bytes = bytes,
                        .between = crosses(op) ? bytes : 0,
                        .deadline = graph.order.position(pass) + (gathers(op) ? 0 : 1),
                        .when = {.phase = of.when.phase}});
}

}  // namespace

Bytes count_moved(Schedule& out, Op op, const Moved& moved) {
  out.network_sent += moved.sent;
  out.network_received += moved.received;
  out.sent_between += crosses(op) ? moved.sent : 0;
  out.received_between += crosses(op) ? moved.received : 0;
  return std::max(moved.sent, moved.received);
}

Index add_gather(StepGraph& graph, Index pass) {
  const auto& world = graph.description.world;
  std::vector<Index> sent;
  each_weight(graph.out.passes[pass], graph.layout, graph.rule, &PassWeights::whole, [&](Index c, Place there) {
    if (there.any() && graph.description.is_sent(graph.chunk(c))) sent.push_back(c);
  });
  if (sent.empty()) return kNone;
  Index before = kNone;
  for (const auto op : {Op::gather, Op::local_gather}) {
    if (!has_hops(op, world)) continue;
    Moved moved;
    for (const auto c : sent) {
      const auto owner = graph.description.owner(graph.layout, graph.chunk(c));
      each_hop(op, world, owner, [&](std::size_t, bool sends) { moved.add(sends, graph.weight_bytes(c)); });
    }
    const auto task = add_task(graph, op, pass, moved);
    graph.need(task, before);
    if (before == kNone) {
      for (const auto c : sent) {
        if (!graph.placement[c].device_resident()) graph.need(task, graph.find_event(c, ChunkEvent::weight_updated));
      }
      for (std::size_t i = 0; i < graph.host_weights[pass].size(); ++i) {
        const auto there = graph.out.passes[pass].weights[i].whole;
        for (const auto read : graph.host_weights[pass][i].reads) {
          const bool later = graph.out.tasks[read].when.only == OnlyIf::asked;
          graph.need(task, later ? kNone : read);
        }
        if (there != kNone && !graph.out.buffers[there].whole) graph.fills(task, there);
      }
    }
    before = task;
  }
  graph.need(graph.task_of(pass), before);
  return before;
}

std::uint32_t sent_until(const StepGraph& graph, Index pass) {
  const auto later = graph.order.position(pass) + std::max(1U, graph.lookahead.grad_write);
  return std::min(later, graph.order.positions() - 1);
}

void add_scatter(StepGraph& graph, Index pass, Range chunks) {
  const auto& description = graph.description;
  if (!description.is_shared()) return;
  const auto buffer = graph.out.passes[pass][Operand::received_sums] =
      graph.add_buffer(BufferClass::scratch, kLeast, graph.order.position(pass), sent_until(graph, pass));
  Bytes room = 0;
  auto before = graph.task_of(pass);
  for (const auto op : {Op::local_scatter, Op::scatter}) {
    if (!has_hops(op, description.world)) continue;
    const auto partials = partials_of_all(description, op);
    const auto most = most_arriving(description, op);
    Moved moved;
    for (auto c = chunks.first; c < chunks.end(); ++c) {
      const auto& chunk = graph.chunk(c);
      const auto bytes = (chunk.gradient_elements + chunk.reduced.rows) * sizeof(float);  // and samples beside S
      bool arrives = false;
      each_hop(op, description.world, description.owner(graph.layout, chunk), [&](std::size_t peer, bool sends) {
        moved.add(sends, partials[sends ? description.world.rank : peer] * bytes);
        arrives = !sends;
      });
      room += arrives ? most * bytes : 0;
    }
    const auto task = add_task(graph, op, pass, moved);
    graph.need(task, before);
    if (before == graph.task_of(pass)) {
      graph.fills(task, buffer);
      graph.first_scatters[pass] = task;
    }
    graph.scatters[pass] = before = task;
  }
  graph.lets_go(before, buffer);
  graph.out.buffers[buffer].bytes = std::max(room, kLeast);
}

Index add_row_scatter(StepGraph& graph, const SharedUse& use) {
  const auto pass = use.passes.back();
  const auto& description = graph.description;
  const auto& world = description.world;
  if (!description.is_shared()) return graph.task_of(pass);
  const auto row = graph.block(graph.out.passes[pass].block).columns * sizeof(float);
  const auto add_rows = [&](std::uint64_t rows) {
    return graph.add_buffer(BufferClass::scratch, std::max(rows * row, kLeast), graph.order.position(pass),
                            sent_until(graph, pass));
  };
  auto& of = graph.out.passes[pass];
  of[Operand::sent_rows] = add_rows(description.tokens);
  of[Operand::received_rows] = add_rows(description.all_tokens());
  if (world.local > 1 && world.machines() > 1) {
    of[Operand::machine_rows] = add_rows(std::min(world.local * description.tokens, description.all_tokens()));
  }
  graph.fills(graph.task_of(pass), of[Operand::sent_rows]);
  auto before = graph.task_of(pass);
  for (const auto op : {Op::local_scatter, Op::scatter}) {
    if (!has_hops(op, world)) continue;
    const auto members = crosses(op) ? world.machines() : world.local;
    const auto moved = description.tokens * row / members * (members - 1);
    const auto task = add_task(graph, op, pass, {moved, moved});
    graph.need(task, before);
    if (before == graph.task_of(pass)) {
      graph.fills(task, of[Operand::received_rows]);
      if (of[Operand::machine_rows] != kNone) graph.fills(task, of[Operand::machine_rows]);
    }
    graph.scatters[pass] = before = task;
  }
  for (const auto other : use.passes) {
    if (other != pass) graph.need(before, graph.scatters[other]);
  }
  for (const auto what : {Operand::sent_rows, Operand::received_rows, Operand::machine_rows}) {
    if (of[what] != kNone) graph.lets_go(before, of[what]);
  }
  return before;
}

}  // namespace spillway::plan::step
