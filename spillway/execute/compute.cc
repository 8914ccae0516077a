#include "spillway/execute/compute.h"

#include <algorithm>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/kernels/fp16.h"

namespace spillway::execute {

using state::ComputeType;

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
      return with(reinterpret_cast<const std::uint16_t*>(in), reinterpret_cast<std::uint16_t*>(out));
    case ComputeType::fp16:
      return with(reinterpret_cast<const kernels::Fp16*>(in), reinterpret_cast<kernels::Fp16*>(out));
    case ComputeType::fp32:
      return with(reinterpret_cast<const float*>(in), reinterpret_cast<float*>(out));
  }
}

}  // namespace spillway::execute
