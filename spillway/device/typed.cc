#include "spillway/device/typed.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/fp16.h"
#include "spillway/kernels/packed.h"

namespace spillway::device {
namespace {

const std::uint16_t* halves(const std::byte* at) {
  return reinterpret_cast<const std::uint16_t*>(at);
}
std::uint16_t* halves(std::byte* at) {
  return reinterpret_cast<std::uint16_t*>(at);
}
const float* floats(const std::byte* at) {
  return reinterpret_cast<const float*>(at);
}
float* floats(std::byte* at) {
  return reinterpret_cast<float*>(at);
}

/// The element type of what is not packed.
Element element_of(kernels::Encoding encoding) {
  return encoding == kernels::Encoding::bf16   ? Element::bf16
         : encoding == kernels::Encoding::fp16 ? Element::fp16
                                               : Element::fp32;
}

/// From elements of one type to those of a narrower one, or of one as wide.
void round_to(Element type, const std::byte* in, std::uint64_t n, Element to, std::byte* out) {
  constexpr std::uint64_t kPiece = 4096;
  std::array<float, kPiece> piece;  // NOLINT: filled below
  for (std::uint64_t at = 0; at < n; at += kPiece) {
    const auto count = std::min(kPiece, n - at);
    widen(type, in + at * traits(type).bytes, piece.data(), count);
    static_cast<void>(round_norm(to, piece.data(), out + at * traits(to).bytes, count));
  }
}

}  // namespace

kernels::Norm copy_norm(Element type, const std::byte* in, std::byte* out, std::size_t n) {
  switch (type) {
    case Element::bf16:
      return kernels::copy_norm(halves(in), halves(out), n);
    case Element::fp16:
      return kernels::copy_norm_fp16(halves(in), halves(out), n);
    case Element::fp32:
      break;
  }
  return kernels::copy_norm(floats(in), floats(out), n);
}

kernels::Norm round_norm(Element type, const float* in, std::byte* out, std::size_t n) {
  switch (type) {
    case Element::bf16:
      return kernels::round_norm(in, halves(out), n);
    case Element::fp16:
      return kernels::round_norm_fp16(in, halves(out), n);
    case Element::fp32:
      break;
  }
  return kernels::copy_norm(in, floats(out), n);
}

void widen(Element type, const std::byte* in, float* sum, std::size_t n) {
  switch (type) {
    case Element::bf16:
      return kernels::widen(halves(in), sum, n);
    case Element::fp16:
      return kernels::widen_fp16(halves(in), sum, n);
    case Element::fp32:
      std::memcpy(sum, in, n * sizeof(float));
  }
}

void add(Element type, const std::byte* in, float* sum, std::size_t n) {
  switch (type) {
    case Element::bf16:
      return kernels::add(halves(in), sum, n);
    case Element::fp16:
      return kernels::add_fp16(halves(in), sum, n);
    case Element::fp32:
      return kernels::add(floats(in), sum, n);
  }
}

void softmax_stats(Element type, const std::byte* logits, std::size_t n, float* maximum, float* sum) {
  switch (type) {
    case Element::bf16:
      return kernels::softmax_stats(halves(logits), n, maximum, sum);
    case Element::fp16:
      return kernels::softmax_stats_fp16(halves(logits), n, maximum, sum);
    case Element::fp32:
      return kernels::softmax_stats(floats(logits), n, maximum, sum);
  }
}

void softmax_gradient(Element type, std::byte* logits, std::size_t n, kernels::LogSumExp norm, float scale,
                      std::size_t label) {
  switch (type) {
    case Element::bf16:
      return kernels::softmax_gradient(halves(logits), n, norm, scale, label);
    case Element::fp16:
      return kernels::softmax_gradient_fp16(halves(logits), n, norm, scale, label);
    case Element::fp32:
      return kernels::softmax_gradient(floats(logits), n, norm, scale, label);
  }
}

void convert(kernels::Encoding from, const std::byte* in, std::uint64_t all, std::uint64_t first, std::uint64_t n,
             Element to, std::byte* out) {
  if (kernels::is_packed(from)) return kernels::unpack(from, in, all, first, n, traits(to).encoding, out);
  const auto* const values = in + kernels::encoded_bytes(from, first);
  const auto type = element_of(from);
  if (type == to) {
    if (n > 0) std::memcpy(out, values, n * traits(to).bytes);
  } else if (to == Element::fp32) {
    widen(type, values, floats(out), n);
  } else {
    round_to(type, values, n, to, out);
  }
}

float value_at(Element type, const std::byte* values, std::size_t index) {
  switch (type) {
    case Element::bf16:
      return kernels::widen(halves(values)[index]);
    case Element::fp16:
      return kernels::widen_fp16(halves(values)[index]);
    case Element::fp32:
      break;
  }
  return floats(values)[index];
}

}  // namespace spillway::device
