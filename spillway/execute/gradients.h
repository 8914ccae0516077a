// Gradients on their way from autograd to their chunks: summed over micro-batches in fp32, rounded once, with the
// global norm and the finite check folded into the pass that rounds.
#pragma once

#include <cstdint>
#include <vector>

#include "spillway/execute/arenas.h"
#include "spillway/execute/device_options.h"
#include "spillway/execute/rows.h"
#include "spillway/execute/subspaces.h"
#include "spillway/execute/team.h"
#include "spillway/kernels/gradient.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

class Gradients {
 public:
  /// `rows` may be null. Of a tensor that learns in a subspace the gradient is S. With a device that is given work in a
  /// queue, all arithmetic but that of take_rows() goes there: what is handed over stays until the stream has come to
  /// it. All references must outlive it.
  Gradients(const plan::Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule, Arenas arenas,
            EmbeddingRows* rows, Subspaces& subspaces, Team& team, const OpenDevice& device);

  void begin(std::uint64_t micro_batches);
  void open(const plan::Visit& visit);
  /// One micro-batch's gradient of tensor number `tensor` of the open block, or of the open slice.
  void take(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch);
  void take_slice(const std::byte* values, std::uint64_t micro_batch);
  /// d loss / d output of the embedding, [tokens, columns]: the open visit is embedding_backward.
  void take_rows(const std::byte* values);
  /// Ends the open visit: what got no gradient is zero.
  void close();

  /// Sum of squares of the whole gradient, added in tensor order. Waits for the queue.
  [[nodiscard]] kernels::Norm total();

 private:
  struct Target {
    std::byte* grad = nullptr;
    float* sum = nullptr;  ///< null when there is one micro-batch, and for fp32
    std::uint64_t elements = 0;
  };
  template <class Work>
  void launch(Work work);
  void place_tensors(const state::UpdateRule& rule);
  [[nodiscard]] Target target(Bytes at, std::uint64_t sum_at, std::uint64_t elements) const;
  [[nodiscard]] Target target_of(std::size_t tensor) const;
  void finish_inside(std::size_t tensor, const Target& to, bool seen);
  void add(const Target& target, const std::byte* values, bool first);
  void end_slice(const Target& target, const std::byte* values, const state::Chunk& chunk, kernels::Norm& norm,
                 bool tied);
  kernels::Norm finish(const Target& target, const std::byte* values);  ///< values: not yet in grad, or null
  kernels::Norm tiled(std::uint64_t elements, auto body);

  const plan::Schedule& schedule_;
  const state::Layout& layout_;
  const state::ComputeType type_;
  const Arenas arenas_;
  EmbeddingRows* const rows_;
  Subspaces& subspaces_;
  Team& team_;
  const OpenDevice& device_;
  /// Where a layer's tensor lies in the gradients of its block, and S before its projectors.
  struct Place {
    Bytes grad = 0;         ///< bytes from the start of the gradients
    std::uint64_t sum = 0;  ///< elements from the start of the sums
    Bytes pair = 0;         ///< as `grad`: the projectors; of a subspace alone
  };
  std::vector<Place> places_;  ///< by tensor
  std::uint64_t micro_batches_ = 1;
  const plan::Visit* visit_ = nullptr;
  std::vector<std::uint8_t> seen_;    ///< by tensor of the open block: 0 none, 1 some, 2 final
  std::vector<kernels::Norm> norms_;  ///< by tensor; slices and rows behind them
  std::vector<kernels::Norm> tiles_;
};

}  // namespace spillway::execute
