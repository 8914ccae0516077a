// Gradients of a step between processes: sums of virtual ranks go to the owners of their chunks, who add those of all
// processes as one tree, round once and take the squares. Where several processes are on each machine, their sums are
// added there first (plan/routes.h). In host memory.
#pragma once

#include <span>
#include <vector>

#include "spillway/execute/arenas.h"
#include "spillway/execute/rank_sums.h"
#include "spillway/execute/sparse_embedding.h"
#include "spillway/execute/squares.h"
#include "spillway/network/port.h"
#include "spillway/plan/description.h"
#include "spillway/plan/kinds.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

class GradientExchange {
 public:
  /// `rows` may be null. `squares`: as many as `slots` has places, and what `others` take. All references must outlive
  /// it.
  GradientExchange(const plan::Schedule& schedule, const state::Layout& layout, const plan::Description& description,
                   Arenas arenas, SparseEmbedding* rows, SquareSlots& slots, std::span<double> squares);

  /// Begins a step. `ranks`: of all processes.
  void begin(const plan::VirtualRanks& ranks);
  /// What is to be sent and received of the gradients of a pass, whose sums are complete on this process, by an
  /// operation: first those of the machine, then those between machines.
  [[nodiscard]] std::vector<network::Message> messages(const plan::Pass& pass, plan::Op op);
  /// It has arrived. With the last operation the gradients of this process's chunks are complete.
  void arrived(const plan::Pass& pass, plan::Op op);

 private:
  using Index = plan::Index;
  /// The sums of one chunk's gradient: this process's by subtree, and where those of others arrive, by process and
  /// subtree, one after the other.
  struct ChunkSums {
    Index chunk = plan::kNone;
    std::size_t owner = 0;
    float* own = nullptr;       ///< the first subtree's
    std::uint64_t stride = 0;   ///< elements to the next one's
    float* local = nullptr;     ///< of other processes of this machine; null: another one adds its sums
    float* received = nullptr;  ///< of other machines; null: another process has the chunk
    std::byte* grad = nullptr;  ///< the same
  };
  /// Rows of sums of the embedding that this process sends or receives.
  struct RowHop {
    plan::Op op;
    network::Message message;
    std::size_t owner;  ///< of the rows
  };
  [[nodiscard]] std::vector<ChunkSums> sums_of(const plan::Pass& pass) const;
  [[nodiscard]] plan::VirtualRanks ranks_of(std::size_t process) const { return ranks_.of(process, world_.size); }
  [[nodiscard]] plan::VirtualRanks ranks_of_machine(std::size_t machine) const {
    return ranks_.of(machine, world_.machines());
  }
  [[nodiscard]] std::vector<Partial> of_machine(const ChunkSums& sums) const;
  void add_hops(const ChunkSums& sums, plan::Op op, std::vector<network::Message>& out) const;
  void list_rows();
  void place_machine_rows();
  [[nodiscard]] bool joins_rows_of(std::size_t owner) const;
  [[nodiscard]] SparseEmbedding::Parts rows_for(std::size_t owner) const;
  void rows_arrived(plan::Op op);
  void finish(const ChunkSums& sums);
  void round_layer(const ChunkSums& sums, const float* whole);
  void round_slice(const ChunkSums& sums, const float* whole);
  void round(state::ComputeType type, const float* from, std::byte* to, std::uint64_t elements, double* squares) const;
  void take_squares(const ChunkSums& sums);
  [[nodiscard]] std::byte* at(Index buffer) const { return arenas_.at(schedule_, buffer); }

  const plan::Schedule& schedule_;
  const state::Layout& layout_;
  const plan::Description& description_;
  const state::World world_;
  const Arenas arenas_;
  SparseEmbedding* const rows_;
  SquareSlots& slots_;
  const std::span<double> squares_;
  const plan::Op last_;  ///< operation with which gradients are complete
  plan::VirtualRanks ranks_{1, 1};
  std::vector<OtherRows> others_;                ///< by slice of a tied table; of this step
  std::vector<device::Part> parts_;              ///< what they are made of
  std::vector<RowHop> rows_moved_;               ///< of this step, in the order of messages
  std::vector<float*> own_rows_, machine_rows_;  ///< by owner: this process's sums, and those that it adds for all here
};

}  // namespace spillway::execute
