#include "spillway/plan/derived.h"

#include <algorithm>
#include <cmath>

#include "spillway/plan/conversion.h"

namespace spillway::plan {
namespace {

// Times that operations on each element of a layer read or write an array: of the width of the hidden state (two norms
// of seven each, two sums of three), of queries and keys (rotation), and of the feed-forward (activation and product).
constexpr double kHiddenPasses = 20, kRotatedPasses = 10, kInnerPasses = 5;
/// A backward pass has these once more recomputed, and their gradients twice as many.
constexpr double kBackwardPasses = 3;
/// Reads and writes of a gradient's element: PyTorch's, the sum in fp32, what is kept.
constexpr double kGradientPasses = 3;
/// The hidden state outside of the layers: looked up, its gradient summed by rows.
constexpr double kOutsidePasses = 8;
/// A norm alone: forward, and with backward.
constexpr double kNormPasses = 7;
/// Logits: made, their maximum and sums; a second time for their gradient, written over them.
constexpr double kLossPasses = 2, kGradientOfLossPasses = 4;

// Arrays of a micro-batch that a backward pass holds at once: of each width.
constexpr double kHiddenHeld = 10, kRotatedHeld = 2, kInnerHeld = 5;

struct Matrix {
  double inner = 0, outer = 0;
  double gradient = 1;          ///< of the whole product for its own gradient
  double trained_elements = 0;  ///< of its gradient
};

/// The matrices of a block: tensors of two dimensions or more.
std::vector<Matrix> matrices_of(const state::Layout& layout, const state::Block& block) {
  std::vector<Matrix> out;
  for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
    const auto& tensor = layout.tensors()[t];
    if (tensor.spec.shape.size() < 2) continue;
    const auto inner = static_cast<double>(tensor.spec.shape.back());
    const auto elements = static_cast<double>(tensor.elements);
    const auto trained =
        state::is_trainable(tensor.spec.training) ? static_cast<double>(tensor.gradient_elements()) : 0;
    out.push_back({inner, elements / inner, trained / elements, trained});
  }
  return out;
}

class Deriver {
 public:
  Deriver(const Description& description, const state::Layout& layout, const StepShape& shape,
          const ComputeRates& compute)
      : description_(description),
        layout_(layout),
        shape_(shape),
        compute_(compute),
        tokens_(shape.tokens()),
        times_(static_cast<double>(description.count_own_accumulation())),
        tiles_(static_cast<double>(description.count_own_tiles())),
        element_(static_cast<double>(state::field_bytes(description.computes()).weight)) {}

  void set(Rates& rates) const {
    set_layers(rates);
    if (const auto* head = description_.head(layout_); head != nullptr) set_head(*head, rates);
    rates.between = times_ * passes(kOutsidePasses * hidden());
  }

 private:
  [[nodiscard]] double hidden() const { return static_cast<double>(description_.hidden_size); }
  /// Seconds of operations that read or write so many elements for each token.
  [[nodiscard]] double passes(double elements) const {
    return compute_.elementwise_seconds(tokens_ * elements * element_);
  }
  /// Seconds of a micro-batch's product, in so many tiles of its tokens.
  [[nodiscard]] double product(Product which, double inner, double outer, double tiles = 1) const {
    return 2 * tokens_ * inner * outer / compute_.product(which, tokens_ / tiles, inner, outer);
  }
  /// Tiles that a matrix's products are cut into: those of the feed-forward are.
  [[nodiscard]] double tiles_of(const Matrix& matrix) const {
    if (shape_.feed_forward == 0) return 1;
    const auto inner = static_cast<double>(shape_.feed_forward);
    return std::fmod(matrix.inner, inner) == 0 || std::fmod(matrix.outer, inner) == 0 ? tiles_ : 1;
  }

  /// Seconds of a block's passes over a micro-batch.
  struct Seconds {
    double forward = 0, backward = 0;
    double kept_backward = 0;  ///< where what autograd saves in forward is kept
    void add(const Seconds& other, double sign = 1) {
      forward += sign * other.forward;
      backward += sign * other.backward;
      kept_backward += sign * other.kept_backward;
    }
  };

  void set_layers(Rates& rates) const {
    Seconds all;
    double layers = 0, conversions = 0;
    for (const auto b : layout_.layers()) {
      const auto& block = layout_.blocks()[b];
      all.add(layer(block));
      conversions += conversion(block), ++layers;
    }
    const auto last = layers > 1 ? layout_.layers().back() : 0;
    if (layers > 1 && matrices_of(layout_, layout_.blocks()[last]).empty()) {  // a norm before the head
      const auto norm = layer(layout_.blocks()[last]);
      rates.tail_forward = times_ * norm.forward;
      rates.tail_backward = times_ * norm.backward;
      all.add(norm, -1);
      --layers;
    }
    const auto each = [&](double seconds) { return layers > 0 ? (times_ * seconds + conversions) / layers : 0; };
    rates.forward = rates.kept_forward = each(all.forward);
    rates.backward = each(all.backward);
    rates.kept_backward = each(all.kept_backward);
  }

  /// Seconds that a pass takes once for all micro-batches where it multiplies by a copy: weights are read, it is
  /// written.
  [[nodiscard]] double conversion(const state::Block& block) const {
    Bytes bytes = 0;
    const bool copies = needs_copy(layout_, block);
    for (auto c = block.first_chunk; copies && c < block.first_chunk + block.chunks; ++c) {
      const auto& chunk = layout_.chunks()[c];
      bytes += state::weight_bytes(description_.rule(), chunk) + converted_bytes(description_, chunk);
    }
    return compute_.elementwise_seconds(static_cast<double>(bytes));
  }

  [[nodiscard]] Seconds layer(const state::Block& block) const {
    const auto matrices = matrices_of(layout_, block);
    if (matrices.empty()) {
      const auto norm = passes(kNormPasses * hidden());
      return {norm, kBackwardPasses * norm, (kBackwardPasses - 1) * norm};
    }
    double forward = 0, gradients = 0, remade = 0, sums = static_cast<double>(block.trainable_elements);
    for (const auto& it : matrices) {
      const auto tiles = tiles_of(it);
      const auto output = product(Product::forward, it.inner, it.outer, tiles);
      forward += output;
      remade += tiles > 1 ? output : 0;  // what runs in tiles keeps its input alone
      gradients += product(Product::input, it.inner, it.outer, tiles);
      if (it.gradient > 0) gradients += it.gradient * product(Product::weight, it.inner, it.outer, tiles);
      sums += (tiles - 1) * it.trained_elements;  // each tile's gradient is summed
    }
    const auto sequence = static_cast<double>(shape_.sequence);
    const auto pairs = 2 * static_cast<double>(shape_.query) * sequence * tokens_;
    const auto rotated = static_cast<double>(shape_.query + shape_.key);
    const auto inner = passes(kInnerPasses * static_cast<double>(shape_.feed_forward));
    const auto arrays = passes(kHiddenPasses * hidden() + kRotatedPasses * rotated) + inner;
    remade += tiles_ > 1 ? inner : 0;
    forward += pairs / compute_.attention(sequence, false) + arrays;
    gradients += 2 * pairs / compute_.attention(sequence, true) + (kBackwardPasses - 1) * arrays;
    gradients += compute_.elementwise_seconds(kGradientPasses * sums * element_);
    return {forward, forward + gradients, remade + gradients};
  }

  /// A slice of the head.
  void set_head(const state::Block& head, Rates& rates) const {
    const auto rows = static_cast<double>(head.rows) / static_cast<double>(head.chunks);
    const auto inner = static_cast<double>(head.columns);
    const auto logits = product(Product::forward, inner, rows);
    rates.head_loss = times_ * (logits + passes(kLossPasses * rows));
    rates.head_gradient = times_ * (logits + product(Product::input, inner, rows) +
                                    (head.trainable_chunks > 0 ? product(Product::weight, inner, rows) : 0) +
                                    passes(kGradientOfLossPasses * rows) +
                                    compute_.elementwise_seconds(kGradientPasses * rows * inner * element_));
  }

  const Description& description_;
  const state::Layout& layout_;
  const StepShape& shape_;
  const ComputeRates& compute_;
  const double tokens_;
  const double times_, tiles_;  ///< micro-batches of a step, and tiles of each
  const double element_;
};

}  // namespace

void derive_seconds(const Description& description, const state::Layout& layout, const StepShape& shape,
                    const ComputeRates& compute, Rates& rates) {
  Deriver(description, layout, shape, compute).set(rates);
}

Bytes derive_work(const Description& description, const state::Layout& layout, const StepShape& shape) {
  const auto element = static_cast<double>(state::field_bytes(description.computes()).weight);
  const auto hidden = static_cast<double>(description.hidden_size);
  const auto rotated = static_cast<double>(shape.query + 2 * shape.key);
  const auto held =
      shape.tokens() * element *
      (kHiddenHeld * hidden + kRotatedHeld * rotated + kInnerHeld * static_cast<double>(shape.feed_forward));
  double matrix = 0, slice = 0;
  for (const auto b : layout.layers()) {
    for (const auto& it : matrices_of(layout, layout.blocks()[b])) matrix = std::max(matrix, it.inner * it.outer);
  }
  for (const auto& block : layout.blocks()) slice = std::max(slice, static_cast<double>(block.slice_rows));
  const auto head = shape.tokens() * slice * (element + sizeof(float));
  return static_cast<Bytes>(std::max(held + matrix * element, head));
}

}  // namespace spillway::plan
