// What planning for a device needs of a model and a step: sizes, no tensors. Layers count as equal.
#pragma once

#include <cstdint>

#include "spillway/plan/description.h"
#include "spillway/plan/subspace_share.h"

namespace spillway::plan {

/// A step on each device; every device does the same.
struct DeviceWork {
  std::uint64_t sequence = 1024, batch = 1, micro_batches = 1;
  std::uint64_t query = 0, key = 0;  ///< heads times their size, of queries and of keys
  std::uint64_t feed_forward = 0;    ///< widest inner size of a layer; experts not counted

  [[nodiscard]] double tokens() const noexcept { return static_cast<double>(sequence * batch); }  ///< of a micro-batch
  [[nodiscard]] double all_tokens() const noexcept { return tokens() * static_cast<double>(micro_batches); }
};

struct ModelSizes {
  double layers = 0;
  double layer = 0;   ///< elements of one, padding included
  double matrix = 0;  ///< of those, in matrices
  double table = 0;   ///< elements of the embedding; of the head as many
  double tables = 0;  ///< 1 when they are the same, 2 when not
  double hidden = 0, vocabulary = 0;
  double weight = 2, state = 10, grad = 2;  ///< bytes per element, on average over those that learn and the others
  double learning = 1;                      ///< share of elements that learn: whose weights an update reads and writes
  double gradient_products = 1;  ///< of the matrices' whole gradients' operations; less in subspaces and where frozen
  FitShare fits = {};            ///< learning projectors again, on a schedule; its products count above

  [[nodiscard]] double elements() const noexcept { return layers * layer + tables * table; }
  /// Bytes that an update on a host moves per element: weight and state in and out, the gradient in.
  [[nodiscard]] double update_traffic() const noexcept { return 2 * (rewritten() + state) + grad; }
  /// Bytes of weights per element that an update changes.
  [[nodiscard]] double rewritten() const noexcept { return learning * weight; }

  /// Operations of one device's forward pass through a layer and through the head, all micro-batches. Attention is
  /// causal: half of the products.
  [[nodiscard]] double layer_flops(const DeviceWork& work) const noexcept {
    const auto attention = 2 * static_cast<double>(work.query) * static_cast<double>(work.sequence);
    return (2 * matrix + attention) * work.all_tokens();
  }
  /// And of a backward pass, which computes the layer once more.
  [[nodiscard]] double backward_flops(const DeviceWork& work) const noexcept {
    return 3 * layer_flops(work) - 2 * (1 - gradient_products) * matrix * work.all_tokens();
  }
  [[nodiscard]] double head_flops(const DeviceWork& work) const noexcept { return 2 * table * work.all_tokens(); }
};

/// Blocks that are layers but hold less than a hundredth of the largest (a norm before the head) are counted with the
/// others' elements, not as layers. Error(bad_input) without a layer or an embedding.
[[nodiscard]] ModelSizes sizes_of(const Description& description, const state::Layout& layout);

}  // namespace spillway::plan
