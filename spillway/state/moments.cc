#include "spillway/state/moments.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "spillway/kernels/bf16.h"

namespace spillway::state {
namespace {

using kernels::kQuantBlock;
using kernels::Moments;

}  // namespace

void to_fp32(const MomentSpan& from, std::uint64_t first, std::span<float> out) {
  if (from.kept == Moments::fp32) return static_cast<void>(std::memcpy(out.data(), from.values, out.size_bytes()));
  if (from.kept == Moments::bf16) {
    const auto* values = reinterpret_cast<const std::uint16_t*>(from.values);
    return std::ranges::transform(values, values + out.size(), out.begin(),
                                  [](std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }),
           void();
  }
  static_cast<void>(first);
}

void from_fp32(std::span<const float> values, const MomentSpan& to) {
  if (to.kept == Moments::fp32) return static_cast<void>(std::memcpy(to.values, values.data(), values.size_bytes()));
}

}  // namespace spillway::state
