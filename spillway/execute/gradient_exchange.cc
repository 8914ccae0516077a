#include "spillway/execute/gradient_exchange.h"

#include <algorithm>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/plan/routes.h"
#include "spillway/sink/arithmetic.h"

namespace spillway::execute {

using plan::Operand;

namespace {

std::span<std::byte> bytes_of(float* from, std::uint64_t elements) {
  return {reinterpret_cast<std::byte*>(from), elements * sizeof(float)};
}

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
      others_(rows_ != nullptr && rows_->dense() ? layout_.blocks()[rows_->block()].chunks : 0) {}

void GradientExchange::begin(const plan::VirtualRanks& ranks) {
  ranks_ = ranks;
  list_rows();
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
  if (traits(pass.kind).of_rows) {
    for (const auto& hop : rows_moved_) {
      if (hop.op == op) out.push_back(hop.message);
    }
    return out;
  }
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

void GradientExchange::finish(const ChunkSums& sums) {
  const auto* sum = whole(sums.gradient);
  const auto& chunk = layout_.chunks()[sums.chunk];
  if (chunk.reduced.any()) return finish_reduced(sums, sum);
  const bool slice = traits(layout_.blocks()[chunk.block].role).is_table;
  slice ? round_slice(sums, sum) : round_layer(sums, sum);
}

void GradientExchange::finish_reduced(const ChunkSums& sums, const float* sum) {
  const auto tensor = tensor_of(sums.chunk);
  const auto elements = layout_.tensors()[tensor].gradient_elements();
  const auto squares = squares_.subspan(slots_.tensor(tensor), device::square_tiles(elements));
  add_digest(tensor, sums.chunk, round(description_.weight_dtype, sum, sums.grad, elements, squares.data()));
  const auto behind = gradient_value_bytes(description_.rule(), layout_.chunks()[sums.chunk]);
  reduced_.close(tensor, squares, whole(sums.samples), sums.grad + behind);
}

/// Tensor by tensor, whose tiles begin with them.
void GradientExchange::round_layer(const ChunkSums& sums, const float* whole) {
  const auto& chunk = layout_.chunks()[sums.chunk];
  const auto type = rule_of(description_.rule(), chunk).type;
  for (const auto& span : layout_.spans(sums.chunk)) {
    const auto pieces = slots_.pieces(span.tensor);
    const auto piece = std::ranges::find(pieces, sums.chunk, &SquareSlots::Piece::chunk);
    const auto slot = slots_.piece(span.tensor, static_cast<std::size_t>(piece - pieces.begin()));
    auto* const to = sums.grad + span.chunk_first * state::field_bytes(type).grad;
    add_digest(span.tensor, sums.chunk,
               round(type, whole + span.chunk_first, to, span.elements, squares_.data() + slot));
  }
}

void GradientExchange::round_slice(const ChunkSums& sums, const float* whole) {
  const auto& chunk = layout_.chunks()[sums.chunk];
  const bool tied = rows_ != nullptr && rows_->dense() && rows_->block() == chunk.block;
  auto* const squares = tied ? nullptr : squares_.data() + slots_.slice(sums.chunk);
  const auto values = round(description_.weight_dtype, whole, sums.grad, chunk.used, squares);
  if (digests_ != nullptr) digests_->add_gradient(layout_.blocks()[chunk.block].name, sums.chunk, values, false);
  if (!tied) return;
  const auto& table = layout_.blocks()[chunk.block];
  const auto kept = rows_->in_chunk(chunk);
  device::compute(device::Gather{.type = device::Element::fp32,
                                 .values = reinterpret_cast<const std::byte*>(whole),
                                 .rows = kept.rows.data(),
                                 .base = kept.base,
                                 .count = kept.rows.size(),
                                 .columns = table.columns,
                                 .out = rows_->sum_of(kept.first)},
                  {});
  const auto& others = others_[sums.chunk - table.first_chunk];  // rows that wait for no token's part
  device::compute(device::Squares{.type = description_.weight_dtype,
                                  .values = sums.grad,
                                  .parts = parts_.data() + others.first,
                                  .count = others.count,
                                  .squares = squares_.data() + slots_.other_rows(sums.chunk, others)},
                  {});
}

std::span<const std::byte> GradientExchange::round(state::ComputeType type, const float* from, std::byte* to,
                                                   std::uint64_t elements, double* squares) const {
  device::compute(device::Round{.type = type, .sums = from, .out = to, .n = elements, .squares = squares}, {});
  return {to, elements * state::field_bytes(type).grad};
}

void GradientExchange::add_digest(std::size_t tensor, std::size_t chunk, std::span<const std::byte> values) const {
  if (digests_ != nullptr) digests_->add_gradient(layout_.tensors()[tensor].spec.name, chunk, values, false);
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

// ---- rows of the embedding

/// Lists the rows that this process sends and receives in this step. Sums lie by owner.
void GradientExchange::list_rows() {
  rows_moved_.clear();
  own_rows_.clear();
  if (rows_ == nullptr || schedule_.shared(Operand::sent_rows) == plan::kNone) return;
  const auto columns = layout_.blocks()[rows_->block()].columns;
  auto* own = reinterpret_cast<float*>(at(schedule_.shared(Operand::sent_rows)));
  for (std::size_t owner = 0; owner < world_.size; ++owner) {
    own_rows_.push_back(own);
    own += rows_->count_rows(world_.rank, owner) * columns;
  }
  machine_rows_ = own_rows_;
  if (schedule_.shared(Operand::machine_rows) != plan::kNone) place_machine_rows();
  auto* received = reinterpret_cast<float*>(at(schedule_.shared(Operand::received_rows)));
  for (const auto op : {plan::Op::local_scatter, plan::Op::scatter}) {
    if (!plan::has_hops(op, world_)) continue;
    for (std::size_t owner = 0; owner < world_.size; ++owner) {
      plan::each_hop(op, world_, owner, [&](std::size_t peer, bool sends) {
        const auto maker = sends ? world_.rank : peer;
        const auto rows = plan::crosses(op) ? rows_->count_machine_rows(world_.machine_of(maker), owner)
                                            : rows_->count_rows(maker, owner);
        if (rows == 0) return;
        auto* const from = plan::crosses(op) ? machine_rows_[owner] : own_rows_[owner];
        rows_moved_.push_back({op, {peer, sends, bytes_of(sends ? from : received, rows * columns)}, owner});
        received += sends ? 0 : rows * columns;
      });
    }
  }
}

/// True if this process adds up its machine's rows for an owner on another machine.
bool GradientExchange::joins_rows_of(std::size_t owner) const {
  const auto here = world_.machine_of(world_.rank);
  return world_.machine_of(owner) != here && plan::relay_of(world_, here, owner) == world_.rank;
}

void GradientExchange::place_machine_rows() {
  const auto columns = layout_.blocks()[rows_->block()].columns;
  auto* to = reinterpret_cast<float*>(at(schedule_.shared(Operand::machine_rows)));
  for (std::size_t owner = 0; owner < world_.size; ++owner) {
    if (!joins_rows_of(owner)) continue;
    machine_rows_[owner] = to;
    to += rows_->count_machine_rows(world_.machine_of(world_.rank), owner) * columns;
  }
}

/// Sums of an owner's rows that have come from each process, this one included.
SparseEmbedding::Parts GradientExchange::rows_for(std::size_t owner) const {
  SparseEmbedding::Parts out(world_.size, nullptr);
  out[world_.rank] = own_rows_[owner];
  for (const auto& [op, message, of] : rows_moved_) {
    if (of == owner && !message.sends) out[message.peer] = reinterpret_cast<float*>(message.bytes.data());
  }
  return out;
}

void GradientExchange::rows_arrived(plan::Op op) {
  if (op == plan::Op::local_scatter && schedule_.shared(Operand::machine_rows) != plan::kNone) {
    for (std::size_t owner = 0; owner < world_.size; ++owner) {
      if (joins_rows_of(owner)) rows_->join_parts(owner, rows_for(owner), machine_rows_[owner]);
    }
  }
  if (op != last_) return;
  rows_->round_parts(rows_for(world_.rank));
  if (digests_ == nullptr || !digests_->wanted()) return;
  const auto& table = layout_.blocks()[rows_->block()];
  digests_->add_gradient(text("rows of ", table.name), table.first_chunk, rows_->rounded(), false);
}

}  // namespace spillway::execute
