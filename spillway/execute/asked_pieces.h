// Counts of the pieces that passes ask for: the experts that a step's tokens meet, beside those of its layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "spillway/execute/weight_slots.h"
#include "spillway/plan/placement.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

/// Counts pieces of tensors that are `apart` (TensorSpec), each once a step. Steps without backward do not count.
class AskedPieces {
 public:
  /// Sums over the steps so far, of the tensors of one block.
  struct Count {
    std::string block;
    std::uint64_t asked = 0;     ///< pieces that a step asked for
    std::uint64_t resident = 0;  ///< of those, pieces whose weights stay in memory
    std::uint64_t planned = 0;   ///< of those, pieces whose weights would stay there if none had swapped places
    std::uint64_t swaps = 0;     ///< pieces that took a nearer place
    std::uint64_t pieces = 0;    ///< pieces of the tensors that a step asked for
  };

  /// The training steps that asked for each piece of a tensor.
  struct Steps {
    std::string tensor;
    std::vector<std::uint64_t> steps;
  };

  /// All references must outlive it.
  AskedPieces(const state::Layout& layout, const plan::Placement& placement, const WeightSlots& slots);

  void begin_step(bool counts);
  void add(std::size_t tensor, std::uint64_t first, std::uint64_t count);
  /// A piece of the tensor took a nearer place.
  void add_swap(std::size_t tensor);
  /// Steps that counted, whatever they asked for.
  [[nodiscard]] std::uint64_t training_steps() const noexcept { return training_steps_; }
  /// One for each block with such tensors, in their order.
  [[nodiscard]] const std::vector<Count>& counts() const noexcept { return counts_; }
  /// One for each such tensor, in their order.
  [[nodiscard]] std::vector<Steps> steps() const;

 private:
  struct Tensor {
    std::string name;
    std::size_t count = 0;                 ///< index into `counts_`
    std::vector<bool> pieces;              ///< asked for in this step; empty: the tensor is not counted
    std::vector<std::size_t> chunks = {};  ///< the first of each piece, whose others lie with it
    std::vector<std::uint64_t> steps = {};
    bool any = false;  ///< a piece was asked for in this step
  };

  const plan::Placement& placement_;
  const WeightSlots& slots_;
  std::vector<Tensor> tensors_;
  std::vector<Count> counts_;
  bool is_counting_ = false;
  std::uint64_t training_steps_ = 0;
};

}  // namespace spillway::execute
