// The kernels that touch gradients and logits, for whichever type their elements have.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spillway/device/work.h"
#include "spillway/kernels/encoding.h"
#include "spillway/kernels/gradient.h"
#include "spillway/kernels/softmax.h"

namespace spillway::device {

// These compute as kernels::copy_norm and its like; `in`, `out` and `logits` are of `type`.

kernels::Norm copy_norm(Element type, const std::byte* in, std::byte* out, std::size_t n);
kernels::Norm round_norm(Element type, const float* in, std::byte* out, std::size_t n);
void widen(Element type, const std::byte* in, float* sum, std::size_t n);
void add(Element type, const std::byte* in, float* sum, std::size_t n);
void softmax_stats(Element type, const std::byte* logits, std::size_t n, float* maximum, float* sum);
void softmax_gradient(Element type, std::byte* logits, std::size_t n, kernels::LogSumExp norm, float scale,
                      std::size_t label);
/// Converts `n` of the `all` values of `in`, from number `first` on (of packed ones a multiple of a block), to elements
/// of type `to`.
void convert(kernels::Encoding from, const std::byte* in, std::uint64_t all, std::uint64_t first, std::uint64_t n,
             Element to, std::byte* out);
/// The value of one element.
float value_at(Element type, const std::byte* values, std::size_t index);

}  // namespace spillway::device
