// Rows of the embedding: sums that processes send each other. The owners of the rows end them.
#pragma once

#include <cstddef>
#include <vector>

#include "spillway/execute/arenas.h"
#include "spillway/execute/sparse_embedding.h"
#include "spillway/network/port.h"
#include "spillway/plan/kinds.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

class RowExchange {
 public:
  /// All references must outlive it.
  RowExchange(const plan::Schedule& schedule, const state::Layout& layout, const state::World& world, Arenas arenas,
              SparseEmbedding& rows);

  /// Lists the rows that this process sends and receives in this step, whose ids the embedding has. Sums lie by owner.
  void begin();
  /// Messages of an operation, when this process's sums are there.
  [[nodiscard]] std::vector<network::Message> messages(plan::Op op) const;
  /// The sums of this machine's processes are there: those for owners on other machines are added up.
  void join();
  /// All sums are there: ends and rounds the rows of this process.
  void round();

 private:
  /// Rows that this process sends or receives.
  struct Hop {
    plan::Op op;
    network::Message message;
    std::size_t owner;  ///< of the rows
  };
  void place_machine_rows();
  [[nodiscard]] bool joins_rows_of(std::size_t owner) const;
  [[nodiscard]] SparseEmbedding::Parts rows_for(std::size_t owner) const;
  [[nodiscard]] float* at(plan::Operand operand) const {
    return reinterpret_cast<float*>(arenas_.at(schedule_, schedule_.shared(operand)));
  }

  const plan::Schedule& schedule_;
  const state::World world_;
  const Arenas arenas_;
  SparseEmbedding& rows_;
  const std::uint64_t columns_;
  std::vector<Hop> hops_;                        ///< of this step, in the order of messages
  std::vector<float*> own_rows_, machine_rows_;  ///< by owner: this process's sums, and those that it adds for all here
};

}  // namespace spillway::execute
