#include "spillway/kernels/split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "spillway/kernels/split.cc"
#include <hwy/foreach_target.h>

#include "spillway/kernels/split-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::kernels::HWY_NAMESPACE {
namespace {

void split(const float* master, std::uint16_t* weight, std::uint16_t* remainder, std::size_t n) {
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    split_bits(d, hn::BitCast(Bits<decltype(d)>(), hn::LoadU(d, master + i)), weight + i, remainder + i);
  });
}

void join(const std::uint16_t* weight, const std::uint16_t* remainder, float* master, std::size_t n) {
  for_each_vector<float>(n, [=](auto d, std::size_t i) HWY_ATTR {
    const Half<decltype(d)> dh;
    const auto bits = join_bits(d, hn::LoadU(dh, weight + i), hn::LoadU(dh, remainder + i));
    hn::StoreU(hn::BitCast(d, bits), d, master + i);
  });
}

}  // namespace
}  // namespace spillway::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::kernels {

HWY_EXPORT(split);
HWY_EXPORT(join);

void split(const float* master, std::uint16_t* weight, std::uint16_t* remainder, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(split)(master, weight, remainder, n);
}

void join(const std::uint16_t* weight, const std::uint16_t* remainder, float* master, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(join)(weight, remainder, master, n);
}

namespace scalar {

void split(const float* master, std::uint16_t* weight, std::uint16_t* remainder, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) split_bits(std::bit_cast<std::uint32_t>(master[i]), weight[i], remainder[i]);
}

void join(const std::uint16_t* weight, const std::uint16_t* remainder, float* master, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) master[i] = std::bit_cast<float>(join_bits(weight[i], remainder[i]));
}

}  // namespace scalar

}  // namespace spillway::kernels
#endif  // HWY_ONCE
