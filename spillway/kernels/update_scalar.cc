#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>

#include "spillway/kernels/adam.h"
#include "spillway/kernels/adamw.h"
#include "spillway/kernels/bf16.h"
#include "spillway/kernels/code8.h"
#include "spillway/kernels/fp16.h"
#include "spillway/kernels/lion.h"
#include "spillway/kernels/moments.h"
#include "spillway/kernels/random.h"
#include "spillway/kernels/sgd.h"
#include "spillway/kernels/split.h"
#include "spillway/kernels/update.h"
#include "spillway/kernels/weights_scalar.h"

namespace spillway::kernels::scalar {
namespace {

/// Moment k of the elements from `first` on, in fp32.
void load_moments(Moments moments, const UpdateSpan& s, std::size_t k, std::size_t first, std::size_t n, float* out) {
  for (std::size_t i = 0; i < n; ++i) {
    if (moments == Moments::exact) {
      out[i] = get<float>(s.moments[k], first + i);
    } else if (moments == Moments::bf16) {
      out[i] = kernels::widen(get<std::uint16_t>(s.moments[k], first + i));
    } else {
      const float scale = s.scales[k][first / kQuantBlock];
      const auto code = get<std::uint8_t>(s.moments[k], first + i);
      out[i] = k == 0 ? decode_first(code, scale) : decode_second(code, scale);
    }
  }
}

float scale_of(const float* values, std::size_t n, Moment moment) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFF);
  return block_scale(largest, moment);
}

/// The elements from `first` on are a block of int8 moments, whatever the form.
void store_moments(Moments moments, const UpdateSpan& s, const RandomKey& key, std::size_t k, std::size_t first,
                   std::size_t n, const float* values) {
  const float scale = scale_of(values, n, k == 0 ? Moment::first : Moment::second);
  if (traits(moments).is_scaled) s.scales[k][first / kQuantBlock] = scale;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t index = s.index + first + i;
    const float scaled = values[i] * block_reciprocal(scale);
    if (moments == Moments::exact) {
      put(s.moments[k], first + i, values[i]);
    } else if (moments == Moments::bf16) {
      put(s.moments[k], first + i, round_bf16_randomly(values[i], random16(key, index + k)));
    } else {
      const std::uint64_t pair = index - i % 2;
      const std::uint32_t chance = code_chance(random16(key, pair), random16(key, pair + 1), i % 2 != k);
      put(s.moments[k], first + i, k == 0 ? encode_first(scaled, chance) : encode_second(scaled, chance));
    }
  }
}

template <class Formula>
void update_as(const UpdateForm& form, const UpdateSpan& s, const UpdateStep& step) {
  const Formula formula(step, form.moments);
  const RandomKey key(step.seed, step.step);
  std::array<std::array<float, kQuantBlock>, Formula::kMoments> moments;
  for (std::size_t first = 0; first < s.n; first += kQuantBlock) {
    const std::size_t n = std::min(kQuantBlock, s.n - first);
    for (std::size_t k = 0; k < moments.size(); ++k) load_moments(form.moments, s, k, first, n, moments[k].data());
    for (std::size_t i = 0; i < n; ++i) {
      const float weight = master(form.weights, s, first + i);
      const float grad = gradient(form.weights, s.grad, first + i) * formula.gradient_scale;
      const auto next = [&](auto&... of) { return formula.scalar(weight, grad, of[i]...); };
      put_master(form.weights, s, first + i, quiet(std::apply(next, moments)));
      for (auto& moment : moments) moment[i] = quiet(moment[i]);
    }
    for (std::size_t k = 0; k < moments.size(); ++k) {
      store_moments(form.moments, s, key, k, first, n, moments[k].data());
    }
  }
}

}  // namespace

void update(const UpdateForm& form, const UpdateSpan& span, const UpdateStep& step) {
  switch (step.optimizer) {
    case Optimizer::adamw:
      return update_as<AdamW>(form, span, step);
    case Optimizer::adam:
      return update_as<Adam>(form, span, step);
    case Optimizer::lion:
      return update_as<Lion>(form, span, step);
    case Optimizer::sgd:
      return update_as<Sgd>(form, span, step);
  }
}

}  // namespace spillway::kernels::scalar
