#include "spillway/execute/row_exchange.h"

#include <span>

#include "spillway/plan/routes.h"

namespace spillway::execute {

using plan::Operand;

RowExchange::RowExchange(const plan::Schedule& schedule, const state::Layout& layout, const state::World& world,
                         Arenas arenas, SparseEmbedding& rows)
    : schedule_(schedule),
      world_(world),
      arenas_(arenas),
      rows_(rows),
      columns_(layout.blocks()[rows.block()].columns) {}

void RowExchange::begin() {
  hops_.clear();
  own_rows_.clear();
  auto* own = at(Operand::sent_rows);
  for (std::size_t owner = 0; owner < world_.size; ++owner) {
    own_rows_.push_back(own);
    own += rows_.count_rows(world_.rank, owner) * columns_;
  }
  machine_rows_ = own_rows_;
  if (schedule_.shared(Operand::machine_rows) != plan::kNone) place_machine_rows();
  auto* received = at(Operand::received_rows);
  for (const auto op : {plan::Op::local_scatter, plan::Op::scatter}) {
    if (!plan::has_hops(op, world_)) continue;
    for (std::size_t owner = 0; owner < world_.size; ++owner) {
      plan::each_hop(op, world_, owner, [&](std::size_t peer, bool sends) {
        const auto maker = sends ? world_.rank : peer;
        const auto rows = plan::crosses(op) ? rows_.count_machine_rows(world_.machine_of(maker), owner)
                                            : rows_.count_rows(maker, owner);
        if (rows == 0) return;
        auto* const from = plan::crosses(op) ? machine_rows_[owner] : own_rows_[owner];
        const auto sums = std::span(sends ? from : received, rows * columns_);
        hops_.push_back({op, {peer, sends, std::as_writable_bytes(sums)}, owner});
        received += sends ? 0 : rows * columns_;
      });
    }
  }
}

std::vector<network::Message> RowExchange::messages(plan::Op op) const {
  std::vector<network::Message> out;
  for (const auto& hop : hops_) {
    if (hop.op == op) out.push_back(hop.message);
  }
  return out;
}

/// True if this process adds up its machine's rows for an owner on another machine.
bool RowExchange::joins_rows_of(std::size_t owner) const {
  const auto here = world_.machine_of(world_.rank);
  return world_.machine_of(owner) != here && plan::relay_of(world_, here, owner) == world_.rank;
}

void RowExchange::place_machine_rows() {
  auto* to = at(Operand::machine_rows);
  for (std::size_t owner = 0; owner < world_.size; ++owner) {
    if (!joins_rows_of(owner)) continue;
    machine_rows_[owner] = to;
    to += rows_.count_machine_rows(world_.machine_of(world_.rank), owner) * columns_;
  }
}

/// Sums of an owner's rows that have come from each process, this one included.
SparseEmbedding::Parts RowExchange::rows_for(std::size_t owner) const {
  SparseEmbedding::Parts out(world_.size, nullptr);
  out[world_.rank] = own_rows_[owner];
  for (const auto& [op, message, of] : hops_) {
    if (of == owner && !message.sends) out[message.peer] = reinterpret_cast<float*>(message.bytes.data());
  }
  return out;
}

void RowExchange::join() {
  if (schedule_.shared(Operand::machine_rows) == plan::kNone) return;
  for (std::size_t owner = 0; owner < world_.size; ++owner) {
    if (joins_rows_of(owner)) rows_.join_parts(owner, rows_for(owner), machine_rows_[owner]);
  }
}

void RowExchange::round() {
  rows_.round_parts(rows_for(world_.rank));
}

}  // namespace spillway::execute
