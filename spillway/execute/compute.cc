#include "spillway/execute/compute.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "spillway/kernels/bf16.h"
#include "spillway/kernels/fp16.h"

namespace spillway::execute {
namespace {

using state::ComputeType;

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

kernels::Norm copy_norm(ComputeType type, const std::byte* in, std::byte* out, std::size_t n) {
  switch (type) {
    case ComputeType::bf16:
      return kernels::copy_norm(halves(in), halves(out), n);
    case ComputeType::fp16:
      return kernels::copy_norm_fp16(halves(in), halves(out), n);
    case ComputeType::fp32:
      break;
  }
  return kernels::copy_norm(floats(in), floats(out), n);
}

kernels::Norm round_norm(ComputeType type, const float* in, std::byte* out, std::size_t n) {
  switch (type) {
    case ComputeType::bf16:
      return kernels::round_norm(in, halves(out), n);
    case ComputeType::fp16:
      return kernels::round_norm_fp16(in, halves(out), n);
    case ComputeType::fp32:
      break;
  }
  return kernels::copy_norm(in, floats(out), n);
}

void widen(ComputeType type, const std::byte* in, float* sum, std::size_t n) {
  switch (type) {
    case ComputeType::bf16:
      return kernels::widen(halves(in), sum, n);
    case ComputeType::fp16:
      return kernels::widen_fp16(halves(in), sum, n);
    case ComputeType::fp32:
      std::memcpy(sum, in, n * sizeof(float));
  }
}

void add(ComputeType type, const std::byte* in, float* sum, std::size_t n) {
  switch (type) {
    case ComputeType::bf16:
      return kernels::add(halves(in), sum, n);
    case ComputeType::fp16:
      return kernels::add_fp16(halves(in), sum, n);
    case ComputeType::fp32:
      return kernels::add(floats(in), sum, n);
  }
}

void softmax_stats(ComputeType type, const std::byte* logits, std::size_t n, float* maximum, float* sum) {
  switch (type) {
    case ComputeType::bf16:
      return kernels::softmax_stats(halves(logits), n, maximum, sum);
    case ComputeType::fp16:
      return kernels::softmax_stats_fp16(halves(logits), n, maximum, sum);
    case ComputeType::fp32:
      return kernels::softmax_stats(floats(logits), n, maximum, sum);
  }
}

void softmax_gradient(ComputeType type, std::byte* logits, std::size_t n, kernels::LogSumExp norm, float scale,
                      std::size_t label) {
  switch (type) {
    case ComputeType::bf16:
      return kernels::softmax_gradient(halves(logits), n, norm, scale, label);
    case ComputeType::fp16:
      return kernels::softmax_gradient_fp16(halves(logits), n, norm, scale, label);
    case ComputeType::fp32:
      return kernels::softmax_gradient(floats(logits), n, norm, scale, label);
  }
}

float value_at(ComputeType type, const std::byte* values, std::size_t index) {
  switch (type) {
    case ComputeType::bf16:
      return kernels::widen(halves(values)[index]);
    case ComputeType::fp16:
      return kernels::widen_fp16(halves(values)[index]);
    case ComputeType::fp32:
      break;
  }
  return floats(values)[index];
}

void compress(ComputeType type, const kernels::Projector& projector, const std::byte* in, std::size_t in_stride,
              std::size_t tokens, std::byte* out, Team& team) {
  constexpr std::size_t kTokens = 16 * kernels::kTokenTile;
  const auto with = [&]<class T>(const T* from, T* to) {
    team.run(ceil_div(tokens, kTokens), [&](std::size_t tile) {
      thread_local std::vector<float> work;  // grows to its size and stays
      work.resize(std::max(work.size(), kernels::compress_work(projector)));
      const auto first = tile * kTokens, n = std::min(kTokens, tokens - first);
      kernels::compress(projector, from + first * in_stride, in_stride, n, to + first, tokens, work.data());
    });
  };
  switch (type) {
    case ComputeType::bf16:
      return with(halves(in), halves(out));
    case ComputeType::fp16:
      return with(reinterpret_cast<const kernels::Fp16*>(in), reinterpret_cast<kernels::Fp16*>(out));
    case ComputeType::fp32:
      return with(floats(in), reinterpret_cast<float*>(out));
  }
}

}  // namespace spillway::execute
