// The arrays of an update in any form, for tests: filled with numbers, cut into spans, compared bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "spillway/kernels/code8.h"
#include "spillway/kernels/fp16.h"
#include "spillway/kernels/update.h"
#include "tests/kernels/bits.h"

namespace spillway::kernels::testing {

/// `n` elements behind `offset` elements that an update must not touch.
class Fields {
 public:
  std::vector<std::byte> weight, remainder, grad;
  std::array<std::vector<std::byte>, 2> moments;
  std::array<std::vector<float>, 2> scales;

  /// One in `rarity` numbers is a special one (0: none, and second moments are not negative).
  Fields(const UpdateForm& form, std::size_t count, std::size_t front, std::uint32_t rarity)
      : form_(form), n_(count), offset_(front) {
    if (form.weights == Weights::bf16) {
      weight = bytes(values<std::uint16_t>(1, rarity));
      auto low_bits = values<std::uint16_t>(2, rarity);
      for (std::size_t i = 0; i < low_bits.size(); ++i)
        low_bits[i] = static_cast<std::uint16_t>(mix(static_cast<std::uint32_t>(7 * i)));
      remainder = bytes(low_bits);
      grad = bytes(values<std::uint16_t>(3, rarity));
    } else if (form.weights == Weights::fp32) {
      weight = bytes(values<float>(1, rarity));
      grad = bytes(values<float>(3, rarity));
    } else {
      remainder = bytes(values<float>(1, rarity));
      weight = bytes(values<std::uint16_t>(2, rarity));  // what it was does not matter
      grad = bytes(fp16_values(3, rarity));
    }
    fill_moment(0, rarity);
    fill_moment(1, rarity);
  }

  /// `count` elements from `first` on (int8: a whole number of blocks).
  [[nodiscard]] UpdateSpan span(std::size_t first, std::size_t count) {
    UpdateSpan s{.n = count, .index = 0xFFFFFFF0 + first};  // over the edge of 32 bits
    s.weight = at(weight, first);
    s.remainder = remainder.empty() ? nullptr : at(remainder, first);
    s.grad = at(grad, first);
    for (std::size_t k = 0; k < 2; ++k) {
      s.moments[k] = at(moments[k], first);
      s.scales[k] = scales[k].data() + first / kQuantBlock;
    }
    return s;
  }
  [[nodiscard]] UpdateSpan span() { return span(0, n_); }

  void expect_same_as(const Fields& other, std::size_t first, std::size_t count) const {
    const auto same = [&](const char* field, const auto& a, const auto& b) {
      const std::size_t each = a.size() / (n_ + offset_), from = (first + offset_) * each;
      if (std::memcmp(a.data() + from, b.data() + from, count * each) == 0) return;
      for (std::size_t i = from; i < from + count * each; ++i) {
        ASSERT_EQ(a[i], b[i]) << field << ", element " << i / each - offset_ << " of " << n_;
      }
    };
    same("weight", weight, other.weight);
    if (!remainder.empty()) same("rest", remainder, other.remainder);
    for (std::size_t k = 0; k < 2; ++k) {
      same(k == 0 ? "first moment" : "second moment", moments[k], other.moments[k]);
      for (std::size_t b = (first + kQuantBlock - 1) / kQuantBlock;
           !scales[k].empty() && b < (first + count) / kQuantBlock; ++b) {
        ASSERT_EQ(bits_of(scales[k][b]), bits_of(other.scales[k][b])) << "scale of block " << b;
      }
    }
  }
  void expect_same_as(const Fields& other) const {
    if (n_ + offset_ == 0) return;
    expect_same_as(other, 0, n_);
    expect_same(scales[0], other.scales[0]);
    expect_same(scales[1], other.scales[1]);
  }

 private:
  template <class T>
  [[nodiscard]] std::vector<T> values(std::uint32_t seed, std::uint32_t rarity) const {
    return numbers<T>(n_, offset_, seed, rarity);
  }

  /// Every kind of fp16: ordinary, denormal, and with `rarity` the infinite and NaN.
  [[nodiscard]] std::vector<std::uint16_t> fp16_values(std::uint32_t seed, std::uint32_t rarity) const {
    std::vector<std::uint16_t> all(n_ + offset_);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::uint32_t h = mix(static_cast<std::uint32_t>(i) + seed * 0x9E3779B9u);
      const bool special = rarity != 0 && mix(h) % rarity == 0;
      all[i] = static_cast<std::uint16_t>(special ? h | 0x7C00 : h & 0xBFFF);
    }
    return all;
  }

  void fill_moment(std::size_t k, std::uint32_t rarity) {
    const auto seed = static_cast<std::uint32_t>(5 + k);
    if (form_.moments == Moments::int8) {
      moments[k].resize(n_ + offset_);
      for (std::size_t i = 0; i < moments[k].size(); ++i) {
        moments[k][i] = static_cast<std::byte>(mix(static_cast<std::uint32_t>(i) + seed) >> 7);
      }
      scales[k] = numbers<float>((n_ + kQuantBlock - 1) / kQuantBlock, 0, seed, rarity);
      for (float& scale : scales[k])
        scale = block_scale(bits_of(scale) & 0x7FFFFFFF, k == 0 ? Moment::first : Moment::second);
    } else if (form_.moments == Moments::bf16) {
      moments[k] = bytes(signed_as<std::uint16_t>(k, values<std::uint16_t>(seed, rarity), rarity));
    } else {
      moments[k] = bytes(signed_as<float>(k, values<float>(seed, rarity), rarity));
    }
  }

  template <class T>
  [[nodiscard]] static std::vector<T> signed_as(std::size_t k, std::vector<T> all, std::uint32_t rarity) {
    if (k == 0 || rarity != 0) return all;
    for (T& value : all) {
      auto bits = bits_of(value);
      bits &= static_cast<decltype(bits)>(~decltype(bits){0}) >> 1;
      value = std::bit_cast<T>(bits);
    }
    return all;
  }

  template <class T>
  [[nodiscard]] static std::vector<std::byte> bytes(const std::vector<T>& all) {
    std::vector<std::byte> out(all.size() * sizeof(T));
    if (!all.empty()) std::memcpy(out.data(), all.data(), out.size());
    return out;
  }

  [[nodiscard]] std::byte* at(std::vector<std::byte>& field, std::size_t first) const {
    const std::size_t all = n_ + offset_;
    return all == 0 ? nullptr : field.data() + (first + offset_) * (field.size() / all);
  }

  UpdateForm form_;
  std::size_t n_, offset_;
};

}  // namespace spillway::kernels::testing
