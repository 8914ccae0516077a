// Rows of the embedding: sums that processes send each other.
#include "spillway/base/error.h"
#include "spillway/execute/gradient_exchange.h"
#include "spillway/plan/routes.h"

namespace spillway::execute {

using plan::Operand;

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
