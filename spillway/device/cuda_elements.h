// Elements as a thread of a kernel takes them: one by one, or in groups of 8, by loads and stores of 16 bytes where all
// that a kernel touches is aligned so.
#pragma once

#include <cstdint>
#include <cstring>

#include "spillway/base/on_device.h"
#include "spillway/device/fused.h"
#include "spillway/kernels/bf16.h"
#include "spillway/kernels/fp16.h"
#include "spillway/kernels/lanes.h"
#include "spillway/kernels/split.h"

namespace spillway::device::threads {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kBlock = 256;  ///< threads of a block, of every kernel
static_assert(kernels::kNormLanes == kWarp && kernels::kSoftmaxLanes == 2 * kWarp);

struct Bf16 {
  std::uint16_t bits;
};

SPILLWAY_ON_DEVICE inline float load(Bf16 value) {
  return kernels::widen(value.bits);
}
SPILLWAY_ON_DEVICE inline float load(kernels::Fp16 value) {
  return kernels::widen_fp16(value.bits);
}
SPILLWAY_ON_DEVICE inline float load(float value) {
  return value;
}
SPILLWAY_ON_DEVICE inline void store(float value, Bf16& out) {
  out.bits = kernels::round_bf16(value);
}
SPILLWAY_ON_DEVICE inline void store(float value, kernels::Fp16& out) {
  out.bits = kernels::round_fp16(value);
}
SPILLWAY_ON_DEVICE inline void store(float value, float& out) {
  out = kernels::quiet(value);
}

template <class T>
SPILLWAY_ON_DEVICE const T* as(const std::byte* at) {
  return reinterpret_cast<const T*>(at);
}
template <class T>
SPILLWAY_ON_DEVICE T* as(std::byte* at) {
  return reinterpret_cast<T*>(at);
}

struct Grid {
  std::uint64_t thread = 0, threads = 1;
};

// ---- groups

inline constexpr unsigned kGroup = kFusedGroup;

struct Group {
  float at[kGroup];
};

/// What one load takes.
struct alignas(16) Words {
  std::uint32_t at[4];
};

SPILLWAY_ON_DEVICE inline Words load_words(const void* from) {
#ifdef __CUDA_ARCH__
  const uint4 words = *static_cast<const uint4*>(from);
  return {words.x, words.y, words.z, words.w};
#else
  Words out;  // NOLINT: filled below
  std::memcpy(&out, from, sizeof out);
  return out;
#endif
}

SPILLWAY_ON_DEVICE inline void store_words(Words words, void* to) {
#ifdef __CUDA_ARCH__
  // The intrinsic keeps it one store: behind the branches of rounding nvcc makes four of a plain one.
  __stwb(static_cast<uint4*>(to), make_uint4(words.at[0], words.at[1], words.at[2], words.at[3]));
#else
  std::memcpy(to, &words, sizeof words);
#endif
}

/// The value as an element of type T has it.
template <class T>
SPILLWAY_ON_DEVICE float rounded(float value) {
  T out;
  store(value, out);
  return load(out);
}

SPILLWAY_ON_DEVICE inline std::uint32_t bits_of(float value) {
  return kernels::as_bits(value);
}
template <class T>
SPILLWAY_ON_DEVICE std::uint32_t bits_of(T value) {
  return value.bits;
}

/// Elements of T in one load.
template <class T>
inline constexpr unsigned kPerWords = sizeof(Words) / sizeof(T);

/// Element `k` of one load, bit by bit.
template <class T>
SPILLWAY_ON_DEVICE T bits_in(const Words& words, unsigned k) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return kernels::as_float(words.at[k]);
  } else {
    return T{static_cast<std::uint16_t>(words.at[k / 2] >> (k % 2 * 16))};
  }
}
template <class T>
SPILLWAY_ON_DEVICE float element_of(const Words& words, unsigned k) {
  return load(bits_in<T>(words, k));
}

/// Puts a value into element `k` of one store, whose words begin as zeros.
template <class T>
SPILLWAY_ON_DEVICE void put_bits(T value, Words& words, unsigned k) {
  if constexpr (sizeof(T) == sizeof(float)) {
    words.at[k] = bits_of(value);
  } else {
    words.at[k / 2] |= bits_of(value) << (k % 2 * 16);
  }
}

/// Elements of a group that there are, where `left` follow from its first on.
SPILLWAY_ON_DEVICE inline unsigned count_of(std::uint64_t left) {
  return left < kGroup ? static_cast<unsigned>(left) : kGroup;
}

/// Elements [0, count) of a group, zeros behind them. `aligned`: all groups of the kernel begin at multiples of 16
/// bytes.
template <class T>
SPILLWAY_ON_DEVICE Group load_group(const T* from, unsigned count, bool aligned) {
  Group out;  // NOLINT: filled below
  if (aligned && count == kGroup) {
    for (unsigned part = 0; part < kGroup / kPerWords<T>; ++part) {
      const auto words = load_words(from + part * kPerWords<T>);
      for (unsigned k = 0; k < kPerWords<T>; ++k) out.at[part * kPerWords<T> + k] = element_of<T>(words, k);
    }
  } else {
    for (unsigned k = 0; k < kGroup; ++k) {  // without a branch: each costs the compiler a register
      const float value = load(from[k < count ? k : 0]);
      out.at[k] = k < count ? value : 0.0F;
    }
  }
  return out;
}

/// A group as it lies in memory. It begins as zeros, and each element is put once.
template <class T>
struct Packed {
  Words words[kGroup / kPerWords<T>];

  SPILLWAY_ON_DEVICE T at(unsigned k) const { return bits_in<T>(words[k / kPerWords<T>], k % kPerWords<T>); }
  SPILLWAY_ON_DEVICE void put(unsigned k, T value) { put_bits(value, words[k / kPerWords<T>], k % kPerWords<T>); }
};

/// The values rounded, as store() does it.
template <class T>
SPILLWAY_ON_DEVICE Packed<T> pack(const Group& values) {
  Packed<T> out{};
  for (unsigned k = 0; k < kGroup; ++k) {
    T rounded;
    store(values.at[k], rounded);
    out.put(k, rounded);
  }
  return out;
}

/// Bit by bit, as load_group() loads values.
template <class T>
SPILLWAY_ON_DEVICE Packed<T> load_packed(const T* from, unsigned count, bool aligned) {
  Packed<T> out{};
  if (aligned && count == kGroup) {
    for (unsigned part = 0; part < kGroup / kPerWords<T>; ++part) {
      out.words[part] = load_words(from + part * kPerWords<T>);
    }
  } else {
    for (unsigned k = 0; k < kGroup; ++k) {
      if (k < count) out.put(k, from[k]);
    }
  }
  return out;
}

template <class T>
SPILLWAY_ON_DEVICE void store_packed(const Packed<T>& values, T* to, unsigned count, bool aligned) {
  if (aligned && count == kGroup) {
    for (unsigned part = 0; part < kGroup / kPerWords<T>; ++part) {
      store_words(values.words[part], to + part * kPerWords<T>);
    }
  } else {
    for (unsigned k = 0; k < kGroup; ++k) {
      if (k < count) to[k] = values.at(k);
    }
  }
}

template <class T>
SPILLWAY_ON_DEVICE void store_group(const Group& values, T* to, unsigned count, bool aligned) {
  store_packed(pack<T>(values), to, count, aligned);
}

SPILLWAY_ON_DEVICE inline bool is_aligned(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % sizeof(Words) == 0;
}
/// True if rows of so many elements begin at multiples of 16 bytes where the first does.
template <class T>
SPILLWAY_ON_DEVICE bool is_stride_aligned(std::uint64_t elements) {
  return elements % kPerWords<T> == 0;
}
SPILLWAY_ON_DEVICE inline std::uint64_t groups_of(std::uint64_t elements) {
  return (elements + kGroup - 1) / kGroup;
}

}  // namespace spillway::device::threads
