// Arithmetic that a device does on its memory, in the order of a stream: what a pass leaves to do besides PyTorch's
// own.
//
// Every device gives the same bits: the order of every addition follows from the index of an element, and a GPU's
// kernels are made of the functions that the host's references are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "spillway/base/on_device.h"
#include "spillway/device/fused.h"
#include "spillway/kernels/element.h"
#include "spillway/kernels/gradient.h"
#include "spillway/kernels/mean.h"
#include "spillway/kernels/project.h"
#include "spillway/kernels/update.h"

namespace spillway::device {

using kernels::Element;

/// Squares are summed in tiles of so many elements, each by itself; who wants the sum of a span adds its tiles in
/// order.
inline constexpr std::uint64_t kSquaresTile = kernels::kNormTile;

[[nodiscard]] constexpr std::uint64_t square_tiles(std::uint64_t elements) noexcept {
  return (elements + kSquaresTile - 1) / kSquaresTile;
}

/// sum = values (`first`), or sum += values. n elements; no overlap.
struct Sum {
  Element type = Element::bf16;  ///< of `values`
  const std::byte* values = nullptr;
  float* sum = nullptr;
  std::uint64_t n = 0;
  bool first = false;
};

/// out = `values` in the type `to`: those of 16 bits widened exactly, of the same type copied, else rounded to nearest
/// even. n values, of packed ones (kernels/encoding.h) a multiple of a block; no overlap. The values are those from
/// number `first` on, of packed ones the begin of a block, of an array of `all`.
struct Convert {
  kernels::Encoding from = kernels::Encoding::bf16;
  Element to = Element::fp32;
  const std::byte* values = nullptr;
  std::byte* out = nullptr;
  std::uint64_t n = 0;
  std::uint64_t first = 0;
  std::uint64_t all = 0;  ///< 0: first + n

  [[nodiscard]] SPILLWAY_ON_DEVICE std::uint64_t length() const noexcept { return all == 0 ? first + n : all; }
};

/// out = `sums` rounded to the type, or out = `values`, whichever is not null; and of what was written the sums of
/// squares, tile by tile. They are inf or NaN exactly where an element is not finite. `values` may be `out`.
struct Round {
  Element type = Element::bf16;  ///< of `out` and `values`
  const float* sums = nullptr;
  const std::byte* values = nullptr;
  std::byte* out = nullptr;
  std::uint64_t n = 0;
  double* squares = nullptr;  ///< square_tiles(n) of them; null: not wanted
};

/// A part of at most kSquaresTile elements.
struct Part {
  std::uint64_t first = 0, count = 0;
};

/// The sum of squares of each of the parts of `values`.
struct Squares {
  Element type = Element::bf16;
  const std::byte* values = nullptr;
  const Part* parts = nullptr;
  std::uint64_t count = 0;
  double* squares = nullptr;  ///< [count]
};

/// out[i] = row rows[i] - base of `values`, in fp32. [count, columns].
struct Gather {
  Element type = Element::bf16;  ///< of `values`
  const std::byte* values = nullptr;
  const std::int64_t* rows = nullptr;
  std::int64_t base = 0;
  std::uint64_t count = 0, columns = 0;
  float* out = nullptr;
};

/// out[i] = row index[i] of `values`. [count, columns], all of one type; no overlap.
struct IndexSelect {
  Element type = Element::bf16;
  const std::byte* values = nullptr;
  const std::uint32_t* index = nullptr;
  std::uint64_t count = 0, columns = 0;
  std::byte* out = nullptr;
};

/// One slice of logits, [tokens, rows]; those of a token lie `stride` elements after those of the one before.
struct Logits {
  Element type = Element::bf16;
  std::byte* values = nullptr;
  std::uint64_t tokens = 0, rows = 0, stride = 0;
  std::uint64_t first_row = 0;           ///< of the slice in the vocabulary
  const std::int64_t* labels = nullptr;  ///< [tokens], rows of the whole vocabulary
};

/// Cross entropy, pass 1: folds the slice into the running maximum and sum of exponentials, [tokens] each; notes the
/// label's logit when it is here (kernels/softmax.h).
struct LossStats {
  Logits logits;
  float *maximum = nullptr, *sum = nullptr, *gold = nullptr;
};

/// Pass 2: logits become d loss / d logits times scale.
struct LossGradient {
  Logits logits;
  const float *maximum = nullptr, *log_sum = nullptr;  ///< [tokens]
  float scale = 1;
};

/// kernels::update(). A GPU has kernels for AdamW alone, in every form.
struct Update {
  kernels::UpdateForm form;
  kernels::UpdateSpan span;  ///< each array aligned to its elements
  kernels::UpdateStep step;
};

/// The update of a reduced gradient: `span.weight` becomes what a weight of 0 becomes, in fp32; gradients are bf16.
struct UpdateDelta {
  kernels::Moments moments = kernels::Moments::exact;
  kernels::UpdateSpan span;  ///< as of Update; no remainder
  kernels::UpdateStep step;  ///< of AdamW
};

/// out[c * out_stride + t] = sum over i of in[t * in_stride + i] * R[i, c]: kernels::compress().
struct Compress {
  Element type = Element::bf16;  ///< of `in` and `out`
  kernels::Projector by;         ///< all of it in the device's memory, too; a GPU needs `by_column` of scattered ones
  const std::byte* in = nullptr;
  std::uint64_t in_stride = 0, tokens = 0;  ///< elements from one token to the next
  std::byte* out = nullptr;                 ///< [columns][out_stride]
  std::uint64_t out_stride = 0;
};

/// master = keep * master + P * delta * Q^T over elements [first, first + n) of a matrix whose weights lie as bf16 and
/// remainder, or as bf16 alone: kernels::apply().
struct Apply {
  kernels::Expansion expansion;
  std::uint16_t *weight = nullptr, *remainder = nullptr;  ///< of element `first`; no remainder: rounded stochastically
  std::uint64_t first = 0, n = 0;
  float keep = 1;
  std::uint64_t index = 0;  ///< kernels::UpdateSpan's, of element `first`
};

/// Two running means (kernels/mean.h) of a record of doubles, each with a sample that is a sum of so many squares over
/// `scale`; where a sample is not finite, or there are none, the record as it is. Goes to both places.
struct Sample {
  static constexpr std::size_t kFields = 8;
  static constexpr std::size_t kFirst = 1, kSecond = 2, kSamples = 3;  ///< the means, and their number of samples
  double record[kFields] = {};
  const double *first = nullptr, *second = nullptr;
  std::uint64_t first_count = 0, second_count = 0;  ///< 0: no sample
  double scale = 1;
  double *out = nullptr, *copy = nullptr;  ///< [kFields]
};

/// All pointers are into the device's memory (any alignment of the element's own), counts may be 0.
using Work = std::variant<Sum, Convert, Round, Squares, Gather, IndexSelect, LossStats, LossGradient, Update,
                          UpdateDelta, Compress, Apply, Sample, RmsNormForward, RmsNormScales, RmsNormBackward,
                          RmsNormWeight, SwiGlu, SwiGluBackward, Rotary>;

/// Who takes the tiles of a loop on the host: calls call(body, tile) once for each, and returns when all are done.
struct ParallelFor {
  void* self = nullptr;  ///< null: the calling thread
  void (*loop)(void* self, std::size_t tiles, const void* body,
               void (*call)(const void* body, std::size_t tile)) = nullptr;

  template <class Body>
  void run(std::size_t tiles, const Body& body) const {
    if (self == nullptr) {
      for (std::size_t tile = 0; tile < tiles; ++tile) body(tile);
      return;
    }
    loop(self, tiles, &body, [](const void* it, std::size_t tile) { (*static_cast<const Body*>(it))(tile); });
  }
};

/// What a sample leaves: shared by all devices.
SPILLWAY_ON_DEVICE inline void take_sample(const Sample& it) noexcept {
  double sums[2] = {0, 0};
  for (std::uint64_t i = 0; i < it.first_count; ++i) sums[0] += it.first[i];
  for (std::uint64_t i = 0; i < it.second_count; ++i) sums[1] += it.second[i];
  const double first = sums[0] / it.scale, second = sums[1] / it.scale, samples = it.record[Sample::kSamples];
  const bool taken = it.second_count > 0 && first - first == 0 && second - second == 0;
  for (std::size_t i = 0; i < Sample::kFields; ++i) {
    double value = it.record[i];
    if (taken && i == Sample::kFirst) value = kernels::fold(value, first, samples);
    if (taken && i == Sample::kSecond) value = kernels::fold(value, second, samples);
    if (taken && i == Sample::kSamples) value += 1;
    it.out[i] = it.copy[i] = value;
  }
}

/// Does it here and now, on memory that the host reads. Allocates nothing, but what a thread works on for Compress
/// once for the largest.
void compute(const Work& work, const ParallelFor& parallel_for);

}  // namespace spillway::device
