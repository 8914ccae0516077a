// Gradients on their way from autograd to their chunks: summed over micro-batches in fp32, rounded once, with the
// global norm and the finite check folded into the pass that rounds.
#pragma once

#include <cstdint>
#include <vector>

#include "spillway/execute/rows.h"
#include "spillway/execute/team.h"
#include "spillway/kernels/gradient.h"
#include "spillway/plan/schedule.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

class Gradients {
 public:
  /// `rows` may be null. All references must outlive it.
  Gradients(const plan::Schedule& schedule, const state::Layout& layout, state::ComputeType type, std::byte* arena,
            EmbeddingRows* rows, Team& team);

  void begin(std::uint64_t micro_batches);
  void open(const plan::Visit& visit);
  /// One micro-batch's gradient of tensor number `tensor` of the open block, or of the open slice.
  void take(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch);
  void take_slice(const std::byte* values, std::uint64_t micro_batch);
  /// d loss / d output of the embedding, [tokens, columns]: the open visit is embedding_backward.
  void take_rows(const std::byte* values);
  /// Ends the open visit: what got no gradient is zero.
  void close();

  /// Sum of squares of the whole gradient, added in tensor order.
  [[nodiscard]] kernels::Norm total() const;

 private:
  struct Target {
    std::byte* grad = nullptr;
    float* sum = nullptr;  ///< null when there is one micro-batch, and for fp32
    std::uint64_t elements = 0;
  };
  [[nodiscard]] Target target(std::uint64_t first, std::uint64_t elements) const;
  /// True when the gradient in `target.grad` is final.
  bool add(const Target& target, const std::byte* values, std::uint64_t micro_batch);
  kernels::Norm finish(const Target& target, const std::byte* values);  ///< values: not yet in grad, or null
  kernels::Norm tiled(std::uint64_t elements, auto body);

  const plan::Schedule& schedule_;
  const state::Layout& layout_;
  const state::ComputeType type_;
  std::byte* const arena_;
  EmbeddingRows* const rows_;
  Team& team_;
  std::uint64_t micro_batches_ = 1;
  const plan::Visit* visit_ = nullptr;
  std::vector<std::uint8_t> seen_;    ///< by tensor of the open block: 0 none, 1 some, 2 final
  std::vector<kernels::Norm> norms_;  ///< by tensor; slices and rows behind them
  std::vector<kernels::Norm> tiles_;
};

}  // namespace spillway::execute
