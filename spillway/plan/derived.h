// Seconds and memory of a step on a machine that a profile describes, from rates and shapes: nothing is run. On this
// machine a dry run of one layer measures the same.
#pragma once

#include "spillway/plan/compute_rates.h"
#include "spillway/plan/description.h"

namespace spillway::plan {

/// Facts of a step that its tensors do not contain.
struct StepShape {
  std::uint64_t sequence = 1024, batch = 1;  ///< tokens of a row, rows of a micro-batch
  std::uint64_t query = 0, key = 0;          ///< heads times their size, of queries and of keys
  std::uint64_t feed_forward = 0;            ///< widest inner size of a layer; experts not counted

  [[nodiscard]] double tokens() const noexcept { return static_cast<double>(sequence * batch); }  ///< of a micro-batch
};

/// Sets the seconds of every kind of pass in `rates`: products of each matrix, of which those of the weight's gradient
/// are left out where it is frozen and few where it is reduced; attention; and what is bound by memory, by the bytes
/// that operations on each element read and write in a layer of the Llama family.
void derive_seconds(const Description& description, const state::Layout& layout, const StepShape& shape,
                    const ComputeRates& compute, Rates& rates);

/// Bytes of PyTorch's temporaries at their peak where it computes: of a layer's recomputed forward pass and its
/// backward, attention in tiles, or of the head's slices; whichever is more. An estimate from the Llama family's layer.
[[nodiscard]] Bytes derive_work(const Description& description, const state::Layout& layout, const StepShape& shape);

}  // namespace spillway::plan
