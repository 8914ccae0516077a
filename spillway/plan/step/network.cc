#include "spillway/plan/step/network.h"

#include <algorithm>
#include <tuple>

#include "spillway/plan/routes.h"
#include "spillway/plan/step/hops.h"
#include "spillway/plan/step/passes.h"

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

/// All that a pass reads or makes goes together. Weights come before it, sums leave after it.
Legs add_legs_of_pass(StepGraph& graph, const Hop& hop, Index pass, const CountMoved& count) {
  const auto& of = graph.out.tasks[graph.task_of(pass)];
  const Task task{
      .what = of.what, .deadline = of.deadline + (traits(hop.to).on_host ? 0 : 1), .when = {.phase = of.when.phase}};
  return add_legs(graph, hop, task, count);
}

/// Sums that a pass has made. Returns the tasks that bring them to the owners of their chunks.
const Legs& send_sums(StepGraph& graph, Index pass, const CountMoved& count) {
  graph.scatters[pass] = add_legs_of_pass(graph, hop_between(TierKind::host, TierKind::peer), pass, count);
  graph.need(graph.scatters[pass].first, graph.task_of(pass));
  return graph.scatters[pass];
}

/// Room for sums that a pass sends, or that others send here.
Index add_room(StepGraph& graph, Index pass, Bytes bytes) {
  const auto until = around_pass(graph, hop_between(TierKind::host, TierKind::peer), pass);
  return graph.add_buffer(BufferClass::scratch, std::max(bytes, kLeast), graph.order.position(pass), until);
}

/// Weights that are sent wait for their updates, and for the reads that bring them to where they are sent from.
void wait_for_weights(StepGraph& graph, Index gather, Index pass, const std::vector<Index>& sent) {
  for (const auto c : sent) {
    if (!graph.placement[c].device_resident()) graph.need(gather, graph.find_event(c, ChunkEvent::weight_updated));
  }
  for (std::size_t i = 0; i < graph.host_weights[pass].size(); ++i) {
    const auto there = graph.out.passes[pass].weights[i].whole;
    for (const auto read : graph.host_weights[pass][i].reads) {
      const bool later = graph.out.tasks[read].when.only == OnlyIf::asked;
      graph.need(gather, later ? kNone : read);
    }
    if (there != kNone && !graph.out.buffers[there].whole) graph.fills(gather, there);
  }
}

/// Order of a task of the network, the same on every process: it follows from the order of passes alone. Weights are
/// sent as early as their hop reaches, before the sums of the pass there. Refits of that pass follow its sums.
std::tuple<std::uint32_t, bool, Index, Op> turn_of(const StepGraph& graph, const Task& task) {
  const bool refits = follows_refit(task), comes = gathers(task.op) && !refits;
  const auto& hop = hop_between(TierKind::peer, TierKind::host);
  const auto at = comes ? 2 * around_pass(graph, hop, task.what.index) : 2 * task.deadline - 1;
  return {at, refits, task.what.index, task.op};
}

}  // namespace

Index add_gather(StepGraph& graph, Index pass) {
  std::vector<Index> sent;
  each_weight(graph.out.passes[pass], graph.layout, graph.rule, &PassWeights::whole, [&](Index c, Place there) {
    if (there.any() && graph.description.is_sent(graph.chunk(c))) sent.push_back(c);
  });
  if (sent.empty()) return kNone;
  const auto& hop = hop_between(TierKind::peer, TierKind::host);
  const auto legs = add_legs_of_pass(graph, hop, pass, [&](Op leg, Moved& moved) {
    for (const auto c : sent) {
      const auto owner = graph.description.owner(graph.layout, graph.chunk(c));
      moved.add(leg, graph.description.world, owner, graph.weight_bytes(c));
    }
  });
  wait_for_weights(graph, legs.first, pass, sent);
  graph.need(graph.task_of(pass), legs.last);
  return legs.last;
}

void add_scatter(StepGraph& graph, Index pass, Range chunks) {
  const auto& description = graph.description;
  if (!description.is_shared()) return;
  Bytes room = 0;
  const auto& legs = send_sums(graph, pass, [&](Op leg, Moved& moved) {
    const auto partials = partials_of_all(description, leg);
    const auto most = most_arriving(description, leg);
    for (auto c = chunks.first; c < chunks.end(); ++c) {
      const auto& chunk = graph.chunk(c);
      const auto bytes = (chunk.gradient_elements + chunk.reduced.rows) * sizeof(float);  // and samples beside S
      bool arrives = false;
      each_hop(leg, description.world, description.owner(graph.layout, chunk), [&](std::size_t peer, bool sends) {
        moved.add(sends, partials[sends ? description.world.rank : peer] * bytes);
        arrives = !sends;
      });
      room += arrives ? most * bytes : 0;
    }
  });
  const auto buffer = graph.out.passes[pass][Operand::received_sums] = add_room(graph, pass, room);
  graph.fills(legs.first, buffer);
  graph.lets_go(legs.last, buffer);
}

Index add_row_scatter(StepGraph& graph, const SharedUse& use) {
  const auto pass = use.passes.back();
  const auto& description = graph.description;
  const auto& world = description.world;
  if (!description.is_shared()) return graph.task_of(pass);
  const auto row = graph.block(graph.out.passes[pass].block).columns * sizeof(float);
  const auto add_rows = [&](std::uint64_t rows) { return add_room(graph, pass, rows * row); };
  auto& of = graph.out.passes[pass];
  of[Operand::sent_rows] = add_rows(description.tokens);
  of[Operand::received_rows] = add_rows(description.all_tokens());
  if (world.local > 1 && world.machines() > 1) {
    of[Operand::machine_rows] = add_rows(std::min(world.local * description.tokens, description.all_tokens()));
  }
  const auto& legs = send_sums(graph, pass, [&](Op leg, Moved& moved) {
    const auto members = crosses(leg) ? world.machines() : world.local;
    const auto bytes = description.tokens * row / members * (members - 1);
    moved = {bytes, bytes};
  });
  for (const auto other : use.passes) {
    if (other != pass) graph.need(legs.last, graph.scatters[other].last);
  }
  graph.fills(graph.task_of(pass), of[Operand::sent_rows]);
  for (const auto what : {Operand::sent_rows, Operand::received_rows, Operand::machine_rows}) {
    if (of[what] == kNone) continue;
    if (what != Operand::sent_rows) graph.fills(legs.first, of[what]);
    graph.lets_go(legs.last, of[what]);
  }
  return legs.last;
}

void order_network(StepGraph& graph) {
  std::ranges::sort(graph.out.network, {}, [&](Index t) { return turn_of(graph, graph.out.tasks[t]); });
}

}  // namespace spillway::plan::step
