// Cross entropy over a vocabulary that is never whole: log-sum-exp row by row, slice by slice (two passes).
//
// Pass 1 keeps a running maximum and a running sum of exponentials for each row (the online softmax of Milakov &
// Gimelshein, arXiv 1805.02867), a slice at a time: the slice's maximum first, then its exponentials, added in 64
// virtual lanes by element index. Pass 2 turns a slice of logits into the slice of their gradient, in place.
//
// Every instruction set gives the same bits. Where a row is cut into slices does change the last bits of its sum.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway::kernels {

/// Folds n logits into (maximum, sum): sum = sum over all logits so far of exp(logit - maximum). Start with
/// maximum = -infinity, sum = 0. Relative error of exp at most 2e-7 (fp32 work); 0 where exp would be below 2^-126.
/// NaN and +infinity logits make sum NaN, for good; maximum leaves NaN out. n may be 0; any alignment.
void softmax_stats(const std::uint16_t* logits, std::size_t n, float* maximum, float* sum);  // bf16
void softmax_stats(const float* logits, std::size_t n, float* maximum, float* sum);
void softmax_stats_fp16(const std::uint16_t* logits, std::size_t n, float* maximum, float* sum);

/// A row's log-sum-exp in two parts. Their sum, rounded to fp32, would be off by up to 1e-6 for logits around 20, and
/// so would every probability of the row.
struct LogSumExp {
  float maximum = 0;  ///< from softmax_stats
  float log_sum = 0;  ///< log of its sum
};

/// logits[i] = scale * exp((logits[i] - norm.maximum) - norm.log_sum), rounded to nearest even for bf16 and fp16.
/// At index `label` (n or more when the label is not in this slice) it is (exp(...) - 1) * scale, rounded once.
/// What is not a number becomes the one NaN 0x7FC0, 0x7FC00000 or 0x7E00.
void softmax_gradient(std::uint16_t* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label);
void softmax_gradient(float* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label);
void softmax_gradient_fp16(std::uint16_t* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label);

namespace scalar {
void softmax_stats(const std::uint16_t* logits, std::size_t n, float* maximum, float* sum);
void softmax_stats(const float* logits, std::size_t n, float* maximum, float* sum);
void softmax_gradient(std::uint16_t* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label);
void softmax_gradient(float* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label);
void softmax_stats_fp16(const std::uint16_t* logits, std::size_t n, float* maximum, float* sum);
void softmax_gradient_fp16(std::uint16_t* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label);
}  // namespace scalar

}  // namespace spillway::kernels
