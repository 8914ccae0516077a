#include <algorithm>
#include <cmath>
#include <type_traits>

#include "spillway/kernels/elements_scalar.h"
#include "spillway/kernels/lanes.h"
#include "spillway/kernels/softmax.h"
#include "spillway/kernels/softmax_exp.h"

namespace spillway::kernels::scalar {
namespace {

template <class T>
void stats(const T* logits, std::size_t n, float* maximum, float* sum) {
  float highest = *maximum;
  for (std::size_t i = 0; i < n; ++i) highest = load(logits[i]) > highest ? load(logits[i]) : highest;
  const SoftmaxFold fold(*maximum, highest);
  float lanes[kSoftmaxLanes] = {};
  for (std::size_t i = 0; i < n; ++i) lanes[i % kSoftmaxLanes] += scalar::exp(load(logits[i]) - fold.shift);
  *maximum = fold.maximum;
  *sum = fold.sum(*sum, tree_sum(lanes));
}

template <class T>
void gradient(T* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label) {
  for (std::size_t i = 0; i < n; ++i) {
    const float probability = scalar::exp((load(logits[i]) - norm.maximum) - norm.log_sum);
    store((i == label ? probability - 1.0f : probability) * scale, logits[i]);
  }
}

}  // namespace

void softmax_stats(const std::uint16_t* logits, std::size_t n, float* maximum, float* sum) {
  stats(logits, n, maximum, sum);
}
void softmax_stats(const float* logits, std::size_t n, float* maximum, float* sum) {
  stats(logits, n, maximum, sum);
}

void softmax_gradient(std::uint16_t* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label) {
  gradient(logits, n, norm, scale, label);
}
void softmax_gradient(float* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label) {
  gradient(logits, n, norm, scale, label);
}

void softmax_stats_fp16(const std::uint16_t* logits, std::size_t n, float* maximum, float* sum) {
  stats(reinterpret_cast<const Fp16*>(logits), n, maximum, sum);
}

void softmax_gradient_fp16(std::uint16_t* logits, std::size_t n, LogSumExp norm, float scale, std::size_t label) {
  gradient(reinterpret_cast<Fp16*>(logits), n, norm, scale, label);
}

}  // namespace spillway::kernels::scalar
