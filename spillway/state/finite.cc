#include "spillway/state/finite.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "spillway/base/error.h"
#include "spillway/state/dtype.h"

namespace spillway::state {
namespace {

constexpr std::size_t kFinitePiece = 64 * 1024;

/// Bits of the least positive fp32 that rounds to infinity, as ComputeType.
constexpr std::array<std::int32_t, kernels::kElements.size()> kInfiniteFrom{0x7F7F8000, 0x477FF000, 0x7F800000};

/// The sign left out. Such numbers are ordered as the values are, with infinity and NaN above all of them.
std::int32_t magnitude(float value) {
  return std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF;
}

std::string index_text(std::uint64_t element, const std::vector<std::int64_t>& shape) {
  std::string out;
  for (auto size = shape.rbegin(); size != shape.rend() && *size > 0; ++size) {
    const auto length = static_cast<std::uint64_t>(*size);
    out = text(element % length, out.empty() ? "" : ", ", out);
    element /= length;
  }
  return text("[", out, "]");
}

std::string value_text(float value) {
  if (std::isnan(value)) return "NaN";
  return std::isinf(value) ? text(value < 0 ? "-" : "", "infinity") : text(value);
}

}  // namespace

std::optional<std::size_t> find_not_finite(std::span<const float> values, kernels::Element type) noexcept {
  const auto limit = kInfiniteFrom[static_cast<std::size_t>(type)];
  std::int32_t most = 0;  // without a branch, so that the compiler takes vectors
  for (const float value : values) most = std::max(most, magnitude(value));
  if (most < limit) return std::nullopt;
  const auto at = std::ranges::find_if(values, [=](float value) { return magnitude(value) >= limit; });
  return static_cast<std::size_t>(at - values.begin());
}

std::optional<std::size_t> find_not_finite(const std::byte* weights, std::size_t count, kernels::Element type) {
  const auto& of = traits(type);
  std::vector<float> values(std::min(count, kFinitePiece));
  for (std::size_t at = 0; at < count; at += kFinitePiece) {
    const auto piece = std::span(values).first(std::min(kFinitePiece, count - at));
    to_fp32(of.dtype, weights + at * of.bytes, piece.size(), piece.data());
    if (const auto found = find_not_finite(piece, kernels::Element::fp32)) return at + *found;
  }
  return std::nullopt;
}

void refuse_not_finite(const NotFinite& it, const std::string& file) {
  const bool overflows = std::isfinite(it.value);
  const auto what = text("tensor ", it.tensor, file.empty() ? "" : " in ", file, " holds ", value_text(it.value),
                         " at ", index_text(it.element, it.shape));
  throw Error(ErrorCode::bad_input,
              overflows
                  ? what + ", which is infinite in weight_dtype; use bf16 or fp32"
                  : what + ": a model with such a weight cannot be trained. Repair the checkpoint, or name another",
              0, file);
}

}  // namespace spillway::state
