#include "spillway/execute/gradient_exchange.h"

#include <algorithm>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/plan/routes.h"
#include "spillway/sink/arithmetic.h"

namespace spillway::execute {

using plan::Operand;

namespace {

/// One sum for each maximal subtree of these ranks, `stride` elements apart. `at` is behind them then.
void add_parts(const plan::VirtualRanks& ranks, float*& at, std::uint64_t stride, std::vector<Partial>& out) {
  for (auto first = ranks.first(); first < ranks.end(); first += out.back().of.size) {
    out.push_back({plan::subtree_from(first, ranks.end()), at});
    at += stride;
  }
}

}  // namespace

GradientExchange::GradientExchange(const Parts& parts, SquareSlots& slots, std::span<double> squares)
    : schedule_(parts.schedule),
      layout_(parts.layout),
      description_(parts.description),
      world_(parts.description.world),
      arenas_(parts.arenas),
      rows_(parts.rows),
      reduced_(parts.reduced),
      sink_(parts.sink),
      digests_(parts.digests),
      slots_(slots),
      squares_(squares),
      last_(plan::has_hops(plan::Op::scatter, world_) ? plan::Op::scatter : plan::Op::local_scatter),
      others_(rows_ != nullptr && rows_->dense() ? layout_.blocks()[rows_->block()].chunks : 0) {
  if (rows_ == nullptr || schedule_.shared(Operand::sent_rows) == plan::kNone) return;
  moved_rows_.emplace(schedule_, layout_, world_, arenas_, *rows_);
}

void GradientExchange::begin(const plan::VirtualRanks& ranks) {
  ranks_ = ranks;
  if (moved_rows_) moved_rows_->begin();
  parts_.clear();
  if (others_.empty()) return;
  const auto& table = layout_.blocks()[rows_->block()];
  for (std::size_t slice = 0; slice < others_.size(); ++slice) {
    const auto& chunk = layout_.chunks()[table.first_chunk + slice];
    if (description_.has(layout_, chunk)) list_other_rows(*rows_, chunk, table.columns, others_[slice], parts_);
  }
}

std::vector<GradientExchange::ChunkSums> GradientExchange::sums_of(const plan::Pass& pass) const {
  const auto chunks = plan::chunks_of(layout_, pass);
  const auto rule = description_.rule();
  const auto& buffer = schedule_.buffers[pass[Operand::sent_sums]];
  auto* own = reinterpret_cast<float*>(arenas_.at(buffer));
  auto* received = reinterpret_cast<float*>(at(pass[Operand::received_sums]));
  auto* grad = at(pass[Operand::gradient]);
  const auto stride = buffer.bytes / sizeof(float) / description_.gradient_sums();
  const auto here = world_.machine_of(world_.rank);
  unsigned of_locals = 0, of_machines = 0;
  for (std::size_t process = 0; process < world_.size; ++process) {
    of_locals += process != world_.rank && world_.machine_of(process) == here ? ranks_of(process).partials() : 0;
  }
  for (std::size_t machine = 0; machine < world_.machines(); ++machine) {
    of_machines += machine != here ? ranks_of_machine(machine).partials() : 0;
  }
  const auto place = [&](Sums& sums, bool mine) {
    sums.local = received;
    received += of_locals * sums.elements;
    if (!mine) return;
    sums.received = received;
    received += of_machines * sums.elements;
  };
  std::vector<ChunkSums> out;
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    const auto& chunk = layout_.chunks()[c];
    if (!state::is_trainable(chunk.training)) continue;
    const auto owner = description_.owner(layout_, chunk);
    auto& it = out.emplace_back(
        ChunkSums{.chunk = c, .owner = owner, .gradient = {own, stride, chunk.gradient_elements}, .samples = {}});
    own += chunk.gradient_elements;
    if (chunk.reduced.any()) {
      const auto samples = reduced_.sent(tensor_of(c));
      it.samples = {samples.lowest, samples.stride, samples.elements};
    }
    if (plan::relay_of(world_, here, owner) != world_.rank) continue;
    const bool mine = owner == world_.rank;
    place(it.gradient, mine);
    place(it.samples, mine);
    if (!mine) continue;
    it.grad = grad;
    grad += grad_bytes(rule, chunk);
  }
  return out;
}

std::vector<network::Message> GradientExchange::messages(const plan::Pass& pass, plan::Op op) {
  std::vector<network::Message> out;
  if (traits(pass.kind).of_rows) return moved_rows_ ? moved_rows_->messages(op) : out;
  for (const auto& it : sums_of(pass)) {
    for (const auto& sums : {it.gradient, it.samples}) {
      if (sums.elements > 0) add_hops(sums, it.owner, op, out);
    }
  }
  return out;
}

void GradientExchange::add_hops(const Sums& sums, std::size_t owner, plan::Op op,
                                std::vector<network::Message>& out) const {
  auto* to = plan::crosses(op) ? sums.received : sums.local;
  plan::each_hop(op, world_, owner, [&](std::size_t peer, bool sends) {
    const auto add = [&](float* at) { out.push_back({peer, sends, bytes_of(at, sums.elements)}); };
    if (sends && plan::crosses(op)) {
      for (const auto& part : join_partials(list_machine_partials(sums), 0)) add(part.sum);
      return;
    }
    const auto ranks =
        plan::crosses(op) ? ranks_of_machine(world_.machine_of(peer)) : ranks_of(sends ? world_.rank : peer);
    for (unsigned part = 0; part < ranks.partials(); ++part) {
      add(sends ? sums.own + part * sums.stride : to);
      to += sends ? 0 : sums.elements;
    }
  });
}

void GradientExchange::arrived(const plan::Pass& pass, plan::Op op) {
  if (traits(pass.kind).of_rows) return rows_arrived(op);
  for (const auto& it : sums_of(pass)) {
    for (const auto& sums : {it.gradient, it.samples}) {
      if (op == plan::Op::local_scatter && sums.local != nullptr)
        join_partials(list_machine_partials(sums), sums.elements);
    }
    if (op == last_ && it.grad != nullptr) finish(it);
  }
}

void GradientExchange::rows_arrived(plan::Op op) {
  if (op == plan::Op::local_scatter) moved_rows_->join();
  if (op != last_) return;
  moved_rows_->round();
  if (digests_ == nullptr || !digests_->wanted()) return;
  const auto& table = layout_.blocks()[rows_->block()];
  digests_->add_gradient(text("rows of ", table.name), table.first_chunk, rows_->rounded(), false);
}

/// Partial sums of this machine's processes for which this process is the relay.
std::vector<Partial> GradientExchange::list_machine_partials(const Sums& sums) const {
  const auto begin = world_.machine_of(world_.rank) * world_.local;
  std::vector<Partial> out;
  auto *own = sums.own, *local = sums.local;
  for (auto process = begin; process < begin + world_.local; ++process) {
    const bool mine = process == world_.rank;
    add_parts(ranks_of(process), mine ? own : local, mine ? sums.stride : sums.elements, out);
  }
  return out;
}

/// Ends the tree.
float* GradientExchange::whole(const Sums& sums) const {
  const auto here = world_.machine_of(world_.rank);
  const auto joined = join_partials(list_machine_partials(sums), 0);
  std::vector<Partial> parts;
  auto* received = sums.received;
  for (std::size_t machine = 0; machine < world_.machines(); ++machine) {
    if (machine == here) {
      parts.insert(parts.end(), joined.begin(), joined.end());
      continue;
    }
    add_parts(ranks_of_machine(machine), received, sums.elements, parts);
  }
  return add_partials(parts, sums.elements);
}

// ---- refits

std::vector<network::Message> GradientExchange::refit_messages(const plan::Task& task) {
  const auto refits = ranks_.process_of_first(world_.size);
  const auto parts = sink_.exchanged(tensor_of(task.what.index), refits == world_.rank);
  std::vector<network::Message> out;
  plan::each_hop(task.op, world_, refits, [&](std::size_t peer, bool sends) {
    for (const auto bytes : parts) out.push_back({peer, sends, bytes});
  });
  return out;
}

void GradientExchange::refit_arrived(const plan::Task& task) {
  const bool last = task.op == plan::Op::local_gather || !plan::has_hops(plan::Op::local_gather, world_);
  if (!last) return;
  const auto& to = task.to;
  sink_.received(tensor_of(task.what.index), to.any() ? at(to.buffer) + to.offset : nullptr);
}

}  // namespace spillway::execute
