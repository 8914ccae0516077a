// Gradients of a step between processes: sums of virtual ranks go to the owners of their chunks, who add those of all
// processes as one tree, round once and take the squares. Where several processes are on each machine, their sums are
// added there first (plan/routes.h). What the process of the first rank has refitted from them goes to all others by
// the same routes. In host memory.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "spillway/execute/arenas.h"
#include "spillway/execute/rank_sums.h"
#include "spillway/execute/reduced_gradients.h"
#include "spillway/execute/row_exchange.h"
#include "spillway/execute/sparse_embedding.h"
#include "spillway/execute/squares.h"
#include "spillway/execute/step_digests.h"
#include "spillway/network/port.h"
#include "spillway/plan/description.h"
#include "spillway/plan/kinds.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

class GradientExchange {
 public:
  struct Parts {
    const plan::Schedule& schedule;
    const state::Layout& layout;
    const plan::Description& description;
    Arenas arenas;
    SparseEmbedding* rows = nullptr;  ///< may be null
    ReducedGradients& reduced;
    sink::GradientSink& sink;
    StepDigests* digests = nullptr;  ///< of what is complete; may be null
  };
  /// `squares`: as many as `slots` has places, and what `others` take. All references must outlive it.
  GradientExchange(const Parts& parts, SquareSlots& slots, std::span<double> squares);

  /// Begins a step. `ranks`: of all processes.
  void begin(const plan::VirtualRanks& ranks);
  /// Messages of an operation for the gradients of a pass, whose sums are complete on this process: first those of the
  /// machine, then those between machines.
  [[nodiscard]] std::vector<network::Message> messages(const plan::Pass& pass, plan::Op op);
  /// It has arrived. With the last operation the gradients of this process's chunks are complete.
  void arrived(const plan::Pass& pass, plan::Op op);
  /// Messages of a task that brings the refitted fields of a chunk, first to other machines and then inside each; and
  /// it has arrived.
  [[nodiscard]] std::vector<network::Message> refit_messages(const plan::Task& task);
  void refit_arrived(const plan::Task& task);

 private:
  using Index = plan::Index;
  /// Sums of the same elements: this process's by subtree, and where those of others arrive, by process and subtree,
  /// one after the other.
  struct Sums {
    float* own = nullptr;        ///< the first subtree's
    std::uint64_t stride = 0;    ///< elements to the next one's
    std::uint64_t elements = 0;  ///< 0: there are none
    float* local = nullptr;      ///< of other processes of this machine; null: another one adds its sums
    float* received = nullptr;   ///< of other machines; null: another process has the chunk
  };
  struct ChunkSums {
    Index chunk = plan::kNone;
    std::size_t owner = 0;
    Sums gradient, samples;     ///< samples: of a reduced matrix
    std::byte* grad = nullptr;  ///< null: another process has the chunk
  };
  [[nodiscard]] std::vector<ChunkSums> sums_of(const plan::Pass& pass) const;
  [[nodiscard]] plan::VirtualRanks ranks_of(std::size_t process) const {
    return ranks_.restrict_to(process, world_.size);
  }
  [[nodiscard]] plan::VirtualRanks ranks_of_machine(std::size_t machine) const {
    return ranks_.restrict_to(machine, world_.machines());
  }
  [[nodiscard]] std::size_t tensor_of(Index chunk) const { return layout_.spans(chunk).front().tensor; }
  [[nodiscard]] std::vector<Partial> list_machine_partials(const Sums& sums) const;
  void add_hops(const Sums& sums, std::size_t owner, plan::Op op, std::vector<network::Message>& out) const;
  void rows_arrived(plan::Op op);
  [[nodiscard]] float* whole(const Sums& sums) const;
  void finish(const ChunkSums& sums);
  void finish_reduced(const ChunkSums& sums, const float* whole);
  void round_layer(const ChunkSums& sums, const float* whole);
  void round_slice(const ChunkSums& sums, const float* whole);
  /// Returns the bytes that it has written.
  std::span<const std::byte> round(state::ComputeType type, const float* from, std::byte* to, std::uint64_t elements,
                                   double* squares) const;
  void add_digest(std::size_t tensor, std::size_t chunk, std::span<const std::byte> values) const;
  static std::span<std::byte> bytes_of(float* from, std::uint64_t elements) {
    return {reinterpret_cast<std::byte*>(from), elements * sizeof(float)};
  }
  [[nodiscard]] std::byte* at(Index buffer) const { return arenas_.at(schedule_, buffer); }

  const plan::Schedule& schedule_;
  const state::Layout& layout_;
  const plan::Description& description_;
  const state::World world_;
  const Arenas arenas_;
  SparseEmbedding* const rows_;
  ReducedGradients& reduced_;
  sink::GradientSink& sink_;
  StepDigests* const digests_;
  SquareSlots& slots_;
  const std::span<double> squares_;
  const plan::Op last_;  ///< operation with which gradients are complete
  plan::VirtualRanks ranks_{1, 1};
  std::vector<OtherRows> others_;    ///< by slice of a tied table; of this step
  std::vector<device::Part> parts_;  ///< what they are made of
  std::optional<RowExchange> moved_rows_;
};

}  // namespace spillway::execute
