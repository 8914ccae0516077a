// The caller is given a BlockPass for each forward or backward pass of a block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spillway/plan/schedule.h"

namespace spillway::execute {

/// Over all micro-batches. Pointers are into the engine's memory and valid until end_pass(); null where there is none.
struct BlockPass {
  plan::PassKind kind = plan::PassKind::forward;
  std::size_t block = 0;                  ///< index into the description's blocks
  std::size_t slice = 0;                  ///< embedding and head: slice of the table
  std::uint64_t first_row = 0, rows = 0;  ///< embedding and head: rows of the slice
  std::byte* weights = nullptr;           ///< the block's weights, or the slice's, in the compute type
  std::byte* input = nullptr;             ///< [tokens, hidden]: the block's input; head: output of the last layer
  std::byte* output = nullptr;            ///< forward: to be written; first backward without a head: the last output
  std::byte* hidden_gradient = nullptr;   ///< backward: d loss / d output on entry, d loss / d input on exit
  float* accumulator = nullptr;           ///< head_gradient and first backward: [tokens, hidden] scratch
  /// For a layer that spills what autograd saves of it: forward: where that is to be put, in any form; backward: what
  /// the forward pass of this step has put there.
  std::byte* spilled = nullptr;
  Bytes spilled_bytes = 0;        ///< there are so many
  std::byte* features = nullptr;  ///< the same for features of images, of the first layer
  Bytes feature_bytes = 0;        ///< there are so many
};

}  // namespace spillway::execute
