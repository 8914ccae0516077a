// The hot set of a run: pieces of tensors that lie in memory. It is chosen again every so many steps, by the steps that
// asked for each piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/execute/asked_pieces.h"
#include "spillway/execute/weight_slots.h"
#include "spillway/plan/description.h"
#include "spillway/plan/placement.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

/// Two pieces of a tensor that swap their places, as chunks: those of `near` come nearer to the passes.
struct PieceSwap {
  std::size_t tensor = 0;
  plan::Range near, far;
};

class HotPieces {
 public:
  /// `period`: training steps between two choices; 0: the set of the plan stays. Pieces move that are frozen, that no
  /// other process sends, and that some steps do not ask for.
  HotPieces(const plan::Description& description, const state::Layout& layout, const plan::Placement& placement,
            std::uint64_t period);

  /// True if so many steps were counted since the last choice, and pieces have places to swap.
  [[nodiscard]] bool is_due(const AskedPieces& asked) const;
  /// Chooses by the steps that asked for each piece. Each choice halves what was counted before it; at first that is
  /// the share that the plan counts on, for one period. A swap costs a read, so small differences move nothing.
  [[nodiscard]] std::vector<PieceSwap> choose(const AskedPieces& asked, const WeightSlots& slots);

 private:
  struct Tensor {
    std::size_t tensor = 0;  ///< index into Layout::tensors()
    std::size_t number = 0;  ///< among those that are counted
    std::vector<plan::Range> pieces = {};
    std::vector<double> counts = {};         ///< steps that asked for each piece; old ones count less
    std::vector<std::uint64_t> before = {};  ///< steps that had asked for each piece at the last choice
  };

  void add(const plan::Description& description, const state::Layout& layout, std::size_t tensor, std::size_t number);
  [[nodiscard]] bool has_several_places(const Tensor& tensor) const;
  void choose(const Tensor& tensor, const WeightSlots& slots, std::vector<PieceSwap>& out) const;
  [[nodiscard]] bool pays(double far, double near) const;

  const plan::Placement& placement_;
  const std::uint64_t period_;
  std::vector<Tensor> tensors_;
  double steps_;              ///< that the counts are of
  std::uint64_t chosen_ = 0;  ///< steps counted at the last choice
};

}  // namespace spillway::execute
