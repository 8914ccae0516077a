// What one thread of the kernels of updates does: eight neighbouring elements at a time, by the functions that the
// host's reference is made of (kernels/update_scalar.cc). Where all eight are there and aligned they are loaded and
// stored 16 bytes at a time.
//
// WeightsOf says how weights lie, and knows nothing of moments. Each format of moments has a function or a class below.
// Of moments of 8 bits a warp has a block of codes: what CodedEight loads and what it stores stand apart, since the
// scale of the block is known between them.
#pragma once

#include <cstdint>

#include "spillway/base/on_device.h"
#include "spillway/device/cuda_threads.h"
#include "spillway/kernels/adamw.h"
#include "spillway/kernels/code8.h"
#include "spillway/kernels/random.h"

namespace spillway::device::threads {

/// Update as it is launched: the step's constants are the host's.
struct UpdateArguments {
  kernels::UpdateForm form;
  kernels::UpdateSpan span;
  kernels::AdamW formula;
  kernels::RandomKey key;
};

/// UpdateDelta as it is launched.
struct DeltaArguments : UpdateArguments {};

/// Neighbours of one thread: in bf16 they take 16 bytes, and they have the numbers of one block of AES.
inline constexpr unsigned kEight = 8;
static_assert(kernels::kRandomBlock<std::uint16_t> == kEight && kWarp * kEight == kernels::kQuantBlock);

/// Those of [begin, end) are elements of the span.
struct UpdateGroup {
  std::int64_t first = 0;  ///< number in the span; it may lie before the span
  unsigned begin = 0, end = kEight;
  bool wide = false;  ///< all eight are elements, and aligned in every array
};

/// UpdateGroup number `number` of those that begin `lead` elements before the span.
SPILLWAY_ON_DEVICE inline UpdateGroup update_group_of(std::uint64_t number, unsigned lead, std::uint64_t n,
                                                      bool aligned) {
  UpdateGroup out{static_cast<std::int64_t>(number * kEight) - lead};
  const auto left = static_cast<std::int64_t>(n) - out.first;
  if (out.first < 0) out.begin = lead;
  if (left < kEight) out.end = left > 0 ? static_cast<unsigned>(left) : 0;
  out.wide = aligned && out.begin == 0 && out.end == kEight;
  return out;
}

/// What a GPU loads at once.
template <unsigned n>
struct alignas(4 * n) [[gnu::may_alias]] LoadedWords {
  std::uint32_t of[n];
};

/// Eight unsigned integers in registers, as they lie in memory; those that are no elements are 0.
template <class T>
class Eight {
 public:
  Eight() = default;
  SPILLWAY_ON_DEVICE Eight(const std::byte* array, const UpdateGroup& group) {
    if (group.wide) {
      for (unsigned i = 0; i < kWords / kAtOnce; ++i) {
        const auto loaded = as<LoadedWords<kAtOnce>>(array + group.first * sizeof(T))[i];
        for (unsigned j = 0; j < kAtOnce; ++j) words_[i * kAtOnce + j] = loaded.of[j];
      }
      return;
    }
    for (unsigned k = 0; k < kEight; ++k) {
      if (k >= group.begin && k < group.end) set(k, as<T>(array)[group.first + k]);
    }
  }

  SPILLWAY_ON_DEVICE void store(std::byte* array, const UpdateGroup& group) const {
    if (group.wide) {
      for (unsigned i = 0; i < kWords / kAtOnce; ++i) {
        LoadedWords<kAtOnce> stored;
        for (unsigned j = 0; j < kAtOnce; ++j) stored.of[j] = words_[i * kAtOnce + j];
        as<LoadedWords<kAtOnce>>(array + group.first * sizeof(T))[i] = stored;
      }
      return;
    }
    for (unsigned k = 0; k < kEight; ++k) {
      if (k >= group.begin && k < group.end) as<T>(array)[group.first + k] = at(k);
    }
  }

  [[nodiscard]] SPILLWAY_ON_DEVICE T at(unsigned k) const { return static_cast<T>(words_[k / kInWord] >> shift(k)); }
  SPILLWAY_ON_DEVICE void set(unsigned k, T value) {
    auto& word = words_[k / kInWord];
    word = (word & ~(std::uint32_t{T(~T{})} << shift(k))) | std::uint32_t{value} << shift(k);
  }

  /// Whether the group that begins `lead` elements before the array lies where it can be loaded at once.
  [[nodiscard]] SPILLWAY_ON_DEVICE static bool is_aligned(const std::byte* array, unsigned lead) {
    return (reinterpret_cast<std::uintptr_t>(array) - lead * sizeof(T)) % (4 * kAtOnce) == 0;
  }

 private:
  static constexpr unsigned kInWord = 4 / sizeof(T), kWords = kEight / kInWord, kAtOnce = kWords < 4 ? kWords : 4;

  [[nodiscard]] SPILLWAY_ON_DEVICE static unsigned shift(unsigned k) { return k % kInWord * 8 * sizeof(T); }

  std::uint32_t words_[kWords] = {};
};

/// Weights, and gradients, of eight elements: by the type of the weights.
template <class T>
class WeightsOf;

/// A remainder beside each.
template <>
class WeightsOf<Bf16> {
 public:
  SPILLWAY_ON_DEVICE WeightsOf(const kernels::UpdateSpan& span, const UpdateGroup& group)
      : weight_(span.weight, group), remainder_(span.remainder, group), grad_(span.grad, group) {}
  [[nodiscard]] SPILLWAY_ON_DEVICE static bool are_aligned(const kernels::UpdateSpan& span, unsigned lead) {
    using Halves = Eight<std::uint16_t>;
    return Halves::is_aligned(span.weight, lead) && Halves::is_aligned(span.remainder, lead) &&
           Halves::is_aligned(span.grad, lead);
  }
  [[nodiscard]] SPILLWAY_ON_DEVICE float gradient(unsigned k) const { return kernels::widen(grad_.at(k)); }
  [[nodiscard]] SPILLWAY_ON_DEVICE float master(unsigned k) const {
    return kernels::as_float(kernels::scalar::join_bits(weight_.at(k), remainder_.at(k)));
  }
  SPILLWAY_ON_DEVICE void set_master(unsigned k, float value) {
    std::uint16_t weight = 0, remainder = 0;
    kernels::scalar::split_bits(kernels::as_bits(value), weight, remainder);
    weight_.set(k, weight);
    remainder_.set(k, remainder);
  }
  SPILLWAY_ON_DEVICE void store(const kernels::UpdateSpan& span, const UpdateGroup& group) const {
    weight_.store(span.weight, group);
    remainder_.store(span.remainder, group);
  }

 private:
  Eight<std::uint16_t> weight_, remainder_, grad_;
};

/// The remainder is the master.
template <>
class WeightsOf<kernels::Fp16> {
 public:
  SPILLWAY_ON_DEVICE WeightsOf(const kernels::UpdateSpan& span, const UpdateGroup& group)
      : master_(span.remainder, group), weight_(span.weight, group), grad_(span.grad, group) {}
  [[nodiscard]] SPILLWAY_ON_DEVICE static bool are_aligned(const kernels::UpdateSpan& span, unsigned lead) {
    using Halves = Eight<std::uint16_t>;
    return Halves::is_aligned(span.weight, lead) && Eight<std::uint32_t>::is_aligned(span.remainder, lead) &&
           Halves::is_aligned(span.grad, lead);
  }
  [[nodiscard]] SPILLWAY_ON_DEVICE float gradient(unsigned k) const { return kernels::widen_fp16(grad_.at(k)); }
  [[nodiscard]] SPILLWAY_ON_DEVICE float master(unsigned k) const { return kernels::as_float(master_.at(k)); }
  SPILLWAY_ON_DEVICE void set_master(unsigned k, float value) {
    master_.set(k, kernels::as_bits(value));
    weight_.set(k, kernels::round_fp16(value));
  }
  SPILLWAY_ON_DEVICE void store(const kernels::UpdateSpan& span, const UpdateGroup& group) const {
    master_.store(span.remainder, group);
    weight_.store(span.weight, group);
  }

 private:
  Eight<std::uint32_t> master_;
  Eight<std::uint16_t> weight_, grad_;
};

/// The weight is its own master.
template <>
class WeightsOf<float> {
 public:
  SPILLWAY_ON_DEVICE WeightsOf(const kernels::UpdateSpan& span, const UpdateGroup& group)
      : weight_(span.weight, group), grad_(span.grad, group) {}
  [[nodiscard]] SPILLWAY_ON_DEVICE static bool are_aligned(const kernels::UpdateSpan& span, unsigned lead) {
    using Floats = Eight<std::uint32_t>;
    return Floats::is_aligned(span.weight, lead) && Floats::is_aligned(span.grad, lead);
  }
  [[nodiscard]] SPILLWAY_ON_DEVICE float gradient(unsigned k) const { return kernels::as_float(grad_.at(k)); }
  [[nodiscard]] SPILLWAY_ON_DEVICE float master(unsigned k) const { return kernels::as_float(weight_.at(k)); }
  SPILLWAY_ON_DEVICE void set_master(unsigned k, float value) { weight_.set(k, kernels::as_bits(value)); }
  SPILLWAY_ON_DEVICE void store(const kernels::UpdateSpan& span, const UpdateGroup& group) const {
    weight_.store(span.weight, group);
  }

 private:
  Eight<std::uint32_t> weight_, grad_;
};

/// Of UpdateDelta: whatever the weights were counts as 0.
struct Delta {};
template <>
class WeightsOf<Delta> {
 public:
  SPILLWAY_ON_DEVICE WeightsOf(const kernels::UpdateSpan& span, const UpdateGroup& group)
      : weight_(span.weight, group), grad_(span.grad, group) {}
  [[nodiscard]] SPILLWAY_ON_DEVICE static bool are_aligned(const kernels::UpdateSpan& span, unsigned lead) {
    return Eight<std::uint32_t>::is_aligned(span.weight, lead) && Eight<std::uint16_t>::is_aligned(span.grad, lead);
  }
  [[nodiscard]] SPILLWAY_ON_DEVICE float gradient(unsigned k) const { return kernels::widen(grad_.at(k)); }
  [[nodiscard]] SPILLWAY_ON_DEVICE float master(unsigned) const { return 0; }
  SPILLWAY_ON_DEVICE void set_master(unsigned k, float value) { weight_.set(k, kernels::as_bits(value)); }
  SPILLWAY_ON_DEVICE void store(const kernels::UpdateSpan& span, const UpdateGroup& group) const {
    weight_.store(span.weight, group);
  }

 private:
  Eight<std::uint32_t> weight_;
  Eight<std::uint16_t> grad_;
};

/// The formula on eight elements; moments in fp32, in place.
template <class T>
SPILLWAY_ON_DEVICE void apply_formula(const kernels::AdamW& formula, WeightsOf<T>& weights, float (&first)[kEight],
                                      float (&second)[kEight]) {
  for (unsigned k = 0; k < kEight; ++k) {
    const float grad = weights.gradient(k) * formula.gradient_scale;
    weights.set_master(k, kernels::quiet(formula.scalar(weights.master(k), grad, first[k], second[k])));
    first[k] = kernels::quiet(first[k]);
    second[k] = kernels::quiet(second[k]);
  }
}

// ---- moments in fp32

template <class T>
SPILLWAY_ON_DEVICE void update_exact(const UpdateArguments& a, Grid grid) {
  using Floats = Eight<std::uint32_t>;
  const auto& moments = a.span.moments;
  const bool aligned =
      WeightsOf<T>::are_aligned(a.span, 0) && Floats::is_aligned(moments[0], 0) && Floats::is_aligned(moments[1], 0);
  for (auto number = grid.thread; number * kEight < a.span.n; number += grid.threads) {
    const auto group = update_group_of(number, 0, a.span.n, aligned);
    WeightsOf<T> weights(a.span, group);
    Floats kept[2] = {{moments[0], group}, {moments[1], group}};
    float first[kEight], second[kEight];
    for (unsigned k = 0; k < kEight; ++k) {
      first[k] = kernels::as_float(kept[0].at(k));
      second[k] = kernels::as_float(kept[1].at(k));
    }
    apply_formula(a.formula, weights, first, second);
    for (unsigned k = 0; k < kEight; ++k) {
      kept[0].set(k, kernels::as_bits(first[k]));
      kept[1].set(k, kernels::as_bits(second[k]));
    }
    for (unsigned m = 0; m < 2; ++m) kept[m].store(moments[m], group);
    weights.store(a.span, group);
  }
}

// ---- moments in bf16. Groups are those of random numbers, of which the first may begin before the span.

/// Lanes of a warp that have elements: the second moment of an element has the number of the next element, so the last
/// lane draws for the one before it.
inline constexpr unsigned kDrawnFor = kWarp - 1;

SPILLWAY_ON_DEVICE inline unsigned lead_of(const kernels::UpdateSpan& span) {
  return static_cast<unsigned>(span.index % kEight);
}
SPILLWAY_ON_DEVICE inline std::uint64_t groups_of(const kernels::UpdateSpan& span) {
  return (lead_of(span) + span.n + kEight - 1) / kEight;
}
/// Those of group `number`.
SPILLWAY_ON_DEVICE inline kernels::AesState numbers_of_group(const UpdateArguments& a, std::uint64_t number,
                                                             const kernels::AesBox& box) {
  return kernels::scalar::random_state(a.key, a.span.index / kEight + number, box);
}

template <class T>
SPILLWAY_ON_DEVICE bool is_aligned_bf16(const kernels::UpdateSpan& span) {
  using Halves = Eight<std::uint16_t>;
  const auto lead = lead_of(span);
  return WeightsOf<T>::are_aligned(span, lead) && Halves::is_aligned(span.moments[0], lead) &&
         Halves::is_aligned(span.moments[1], lead);
}

/// `next`: the first word of the group behind.
template <class T>
SPILLWAY_ON_DEVICE void update_bf16(const UpdateArguments& a, std::uint64_t number, bool aligned,
                                    const kernels::AesState& numbers, std::uint32_t next) {
  const auto& moments = a.span.moments;
  const auto group = update_group_of(number, lead_of(a.span), a.span.n, aligned);
  WeightsOf<T> weights(a.span, group);
  Eight<std::uint16_t> kept[2] = {{moments[0], group}, {moments[1], group}};
  float first[kEight], second[kEight];
  for (unsigned k = 0; k < kEight; ++k) {
    first[k] = kernels::widen(kept[0].at(k));
    second[k] = kernels::widen(kept[1].at(k));
  }
  apply_formula(a.formula, weights, first, second);
  weights.store(a.span, group);
  const auto chance = [&](unsigned k) { return (k < kEight ? numbers.columns[k / 2] : next) >> k % 2 * 16 & 0xFFFF; };
  for (unsigned k = 0; k < kEight; ++k) {
    kept[0].set(k, kernels::round_bf16_randomly(first[k], chance(k)));
    kept[1].set(k, kernels::round_bf16_randomly(second[k], chance(k + 1)));
  }
  for (unsigned m = 0; m < 2; ++m) kept[m].store(moments[m], group);
}

// ---- moments of 8 bits

/// The 16-bit numbers of eight elements from `index` on, two to a word.
SPILLWAY_ON_DEVICE inline kernels::AesState numbers_from(const kernels::RandomKey& key, std::uint64_t index,
                                                         const kernels::AesBox& box) {
  const auto low = kernels::scalar::random_state(key, index / kEight, box);
  const auto lead = static_cast<unsigned>(index % kEight);
  if (lead == 0) return low;
  const auto high = kernels::scalar::random_state(key, index / kEight + 1, box);
  std::uint32_t all[kEight];
  for (unsigned i = 0; i < 4; ++i) all[i] = low.columns[i], all[i + 4] = high.columns[i];
  // Moved by 4, 2 and 1 numbers, so that no register is chosen by a number.
  for (unsigned i = 0; i + 2 < kEight; ++i) all[i] = (lead & 4) != 0 ? all[i + 2] : all[i];
  for (unsigned i = 0; i + 1 < kEight; ++i) all[i] = (lead & 2) != 0 ? all[i + 1] : all[i];
  kernels::AesState out;
  for (unsigned i = 0; i < 4; ++i) out.columns[i] = (lead & 1) != 0 ? all[i] >> 16 | all[i + 1] << 16 : all[i];
  return out;
}

template <class T>
SPILLWAY_ON_DEVICE bool is_aligned_int8(const kernels::UpdateSpan& span) {
  using Codes = Eight<std::uint8_t>;
  return WeightsOf<T>::are_aligned(span, 0) && Codes::is_aligned(span.moments[0], 0) &&
         Codes::is_aligned(span.moments[1], 0);
}

/// A lane's eight elements of a block of codes.
template <class T>
class CodedEight {
 public:
  /// Loads them, applies the formula, and stores what does not wait for the scales: the weights.
  SPILLWAY_ON_DEVICE CodedEight(const UpdateArguments& a, std::uint64_t block, unsigned lane, bool aligned)
      : group_(update_group_of(block * kWarp + lane, 0, a.span.n, aligned)) {
    WeightsOf<T> weights(a.span, group_);
    const Eight<std::uint8_t> kept[2] = {{a.span.moments[0], group_}, {a.span.moments[1], group_}};
    const float scales[2] = {a.span.scales[0][block], a.span.scales[1][block]};
    for (unsigned k = 0; k < kEight; ++k) {
      first_[k] = kernels::decode_first(kept[0].at(k), scales[0]);
      second_[k] = kernels::decode_second(kept[1].at(k), scales[1]);
    }
    apply_formula(a.formula, weights, first_, second_);
    weights.store(a.span, group_);
  }

  /// The bits of the largest magnitude of a moment.
  [[nodiscard]] SPILLWAY_ON_DEVICE std::uint32_t largest(kernels::Moment moment) const {
    const auto& values = moment == kernels::Moment::first ? first_ : second_;
    std::uint32_t out = 0;
    for (unsigned k = 0; k < kEight; ++k) {
      const auto bits = k < group_.end ? kernels::as_bits(values[k]) & 0x7FFFFFFF : 0;
      out = bits > out ? bits : out;
    }
    return out;
  }

  /// `largest_first`, `largest_second`: of the whole block. Lane 0 stores its scales.
  SPILLWAY_ON_DEVICE void store(const UpdateArguments& a, std::uint64_t block, unsigned lane,
                                std::uint32_t largest_first, std::uint32_t largest_second,
                                const kernels::AesBox& box) const {
    const float scales[2] = {kernels::block_scale(largest_first, kernels::Moment::first),
                             kernels::block_scale(largest_second, kernels::Moment::second)};
    const float factors[2] = {kernels::block_reciprocal(scales[0]), kernels::block_reciprocal(scales[1])};
    const auto numbers = numbers_from(a.key, a.span.index + block * kernels::kQuantBlock + lane * kEight, box);
    Eight<std::uint8_t> codes[2];
    for (unsigned k = 0; k < kEight; ++k) {
      const auto even = static_cast<std::uint16_t>(numbers.columns[k / 2]);
      const auto odd = static_cast<std::uint16_t>(numbers.columns[k / 2] >> 16);
      const bool is_odd = k % 2 != 0;
      codes[0].set(k, kernels::encode_first(first_[k] * factors[0], kernels::code_chance(even, odd, is_odd)));
      codes[1].set(k, kernels::encode_second(second_[k] * factors[1], kernels::code_chance(even, odd, !is_odd)));
    }
    for (unsigned m = 0; m < 2; ++m) {
      codes[m].store(a.span.moments[m], group_);
      if (lane == 0) a.span.scales[m][block] = scales[m];
    }
  }

 private:
  UpdateGroup group_;
  float first_[kEight], second_[kEight];
};

}  // namespace spillway::device::threads
