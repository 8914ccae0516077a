// The values of one optimizer step: everything that an update applies, beside the chunk itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/kernels/update.h"
#include "spillway/optim/descriptor.h"

namespace spillway::optim {

/// Hyperparameters of an optimizer and of its `others`, together.
inline constexpr std::size_t kMostValues = 16;

/// Plain data, part of the step's record.
struct Step {
  std::array<double, kMostValues> values = {};  ///< in the descriptor's order, then those of its `others`
  float gradient_scale = 1;  ///< the gradient is multiplied by this first: clip factor, loss scale undone
  std::int64_t step = 1;     ///< counted from 1
  std::uint64_t seed = 0;    ///< of the run: for stochastic rounding

  [[nodiscard]] double learning_rate() const noexcept { return values[kLearningRate]; }
  [[nodiscard]] double weight_decay() const noexcept { return values[kWeightDecay]; }
  friend bool operator==(const Step&, const Step&) = default;
};

/// By name: of an optimizer and its `others` all that are called so; "muon.learning_rate" is that of `muon` alone.
using NamedValues = std::map<std::string, double, std::less<>>;

/// Defaults, and `named` instead of them. Throws Error(bad_input) naming a value that the optimizer has no
/// hyperparameter for, or that is out of range.
[[nodiscard]] Step make_step(const Descriptor& optimizer, const NamedValues& named);

/// What the chunks of `optimizer.of(whole)` are updated by.
[[nodiscard]] Step group_step(const Descriptor& optimizer, const Step& step, bool whole) noexcept;

/// The arguments of the kernel of an optimizer of element scope.
[[nodiscard]] kernels::UpdateStep kernel_step(const Descriptor& optimizer, const Step& step) noexcept;

// ---- a commit's blob: the first layout, which AdamW, Adam, Lion and SGD need no more than, and behind it a versioned
// extension for values that have no place there (docs/formats/journal.md)

/// Bytes of the first layout.
inline constexpr std::size_t kFirstLayoutBytes = 52;
/// Bytes behind it.
[[nodiscard]] Bytes extension_bytes(const Descriptor& optimizer) noexcept;
[[nodiscard]] std::vector<std::byte> encode(const Descriptor& optimizer, const Step& step);
/// The seed is not part of it. Throws Error(corrupt) for what is too short, or was written for another optimizer.
[[nodiscard]] Step decode(const Descriptor& optimizer, std::span<const std::byte> blob);

}  // namespace spillway::optim
