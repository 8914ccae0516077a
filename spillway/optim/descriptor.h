// A descriptor is what an optimizer declares about itself, as plain data: whatever sizes, names, refuses or runs an
// optimizer asks it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "spillway/base/bytes.h"
#include "spillway/kernels/update.h"

namespace spillway::optim {

struct Step;

/// What an update needs at once.
enum class Scope : std::uint8_t {
  element,  ///< any range of elements
  matrix,   ///< all of a matrix [rows, columns]; what is no matrix of a layer has another optimizer
};

/// A hyperparameter of an optimizer. The first two of every optimizer are kLearningRate and kWeightDecay.
struct Hyperparameter {
  const char* name = "";  ///< in a step: "beta1"
  const char* key = "";   ///< in a configuration: "adam_beta1"; "": the configuration has no key of its own for it
  double value = 0;       ///< by default
  double least = 0;       ///< smallest value
  double below = std::numeric_limits<double>::infinity();  ///< values are below this
  bool above = false;                                      ///< a configuration asks for more than `least`
  const char* words = "";                                  ///< for the reference of configurations
  /// Where the kernels of element scope, and commits of the first layout, have it: index into ElementValues; -1:
  /// nowhere.
  int slot = -1;
  std::span<const char* const> choices = {};  ///< names of the values 0, 1, ...; none: it is a number
};

inline constexpr std::size_t kLearningRate = 0, kWeightDecay = 1;
/// learning rate, beta1, beta2, epsilon, weight decay: what kernels of element scope take and what commits of the first
/// layout hold.
using ElementValues = std::array<double, 5>;
inline constexpr ElementValues kElementDefaults{0, 0.9, 0.999, 1e-8, 0};

/// A matrix and what its update reads and writes; all in host memory. Weight, remainder and gradient are those of
/// `weights`.
struct MatrixSpan {
  std::uint64_t rows = 0, columns = 0;
  kernels::Weights weights = kernels::Weights::bf16;
  std::byte* weight = nullptr;
  std::byte* remainder = nullptr;
  std::array<float*, 2> fields = {};  ///< state fields, in the order of the descriptor
  const std::byte* grad = nullptr;
  bool decays = false;
  std::byte* workspace = nullptr;  ///< MatrixKernel::workspace() bytes, aligned to 64
};

/// The update of a matrix, on the host: part after part, each of tiles that threads share. Parts and tiles follow from
/// the shape alone, and the result does not depend on who runs a tile. Calls must not throw.
struct MatrixKernel {
  std::size_t parts = 0;
  std::size_t (*tiles)(std::uint64_t rows, std::uint64_t columns, std::size_t part) = nullptr;
  void (*run)(const MatrixSpan& span, const Step& step, std::size_t part, std::size_t tile) = nullptr;
  Bytes (*workspace)(std::uint64_t rows, std::uint64_t columns) = nullptr;
  /// What it costs, counted in elements that AdamW updates.
  std::uint64_t (*cost)(std::uint64_t rows, std::uint64_t columns) = nullptr;
};

struct Descriptor {
  const char* name = "";   ///< "adamw": in configurations, on disk
  const char* words = "";  ///< one phrase for a person
  Scope scope = Scope::element;
  std::span<const char* const> fields = {};  ///< state kept of every element, at most two: PyTorch's names
  std::span<const Hyperparameter> hyperparameters = {};
  std::span<const kernels::Moments> formats = {};  ///< in which it keeps its fields
  bool decoupled_decay = false;          ///< weights decay by themselves; else the decay is added to the gradient
  bool on_device = false;                ///< a device has kernels for it, in every form
  kernels::Optimizer kernel = {};        ///< of element scope
  const MatrixKernel* matrix = nullptr;  ///< of matrix scope
  const Descriptor* others = nullptr;    ///< of matrix scope: the optimizer of all that is no matrix of a layer

  [[nodiscard]] constexpr bool keeps(kernels::Moments format) const noexcept {
    for (const auto each : formats) {
      if (each == format) return true;
    }
    return false;
  }
  /// What updates a chunk: of `whole` ones, which are matrices, this; of all others it may be another optimizer.
  [[nodiscard]] constexpr const Descriptor& of(bool whole) const noexcept {
    return whole || others == nullptr ? *this : *others;
  }
};

}  // namespace spillway::optim
