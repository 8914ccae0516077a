#include "spillway/device/typed.h"

#include <cstring>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/fp16.h"

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
