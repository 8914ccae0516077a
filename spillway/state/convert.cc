#include "spillway/state/convert.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "spillway/base/error.h"
#include "spillway/kernels/bf16.h"
#include "spillway/kernels/fp16.h"
#include "spillway/kernels/packed.h"
#include "spillway/kernels/split.h"

namespace spillway::state {
namespace {

void check_range(const ChunkFields& chunk, std::uint64_t first, std::uint64_t count) {
  if (first > chunk.elements || count > chunk.elements - first) {
    throw Error(ErrorCode::internal,
                text(count, " elements at ", first, " of a chunk that has ", chunk.elements, " of them"));
  }
  const bool remainder =
      chunk.rounded || chunk.remainder != nullptr || chunk.master != nullptr || chunk.type == ComputeType::fp32;
  if (chunk.weight == nullptr || !remainder) {
    throw Error(ErrorCode::internal, "masters of a chunk without its weight or remainder");
  }
}

std::uint16_t* bits16(const ChunkFields& chunk) {
  return reinterpret_cast<std::uint16_t*>(chunk.weight);
}

/// The weight that split() would give.
std::uint16_t upper(float master) {
  std::uint16_t weight = 0, remainder = 0;
  kernels::scalar::split_bits(std::bit_cast<std::uint32_t>(master), weight, remainder);
  return weight;
}

void to_rounded(std::span<const float> masters, const ChunkFields& chunk, std::uint64_t first) {
  if (chunk.type == ComputeType::bf16) {
    std::ranges::transform(masters, bits16(chunk) + first, upper);
  } else {
    std::ranges::transform(masters, bits16(chunk) + first, kernels::round_fp16);
  }
}

void from_rounded(const ChunkFields& chunk, std::uint64_t first, std::span<float> masters) {
  const std::span weights(bits16(chunk) + first, masters.size());
  if (chunk.type == ComputeType::bf16) {
    std::ranges::transform(weights, masters.begin(), kernels::widen);
  } else {
    std::ranges::transform(weights, masters.begin(), kernels::widen_fp16);
  }
}

void to_packed(std::span<const float> masters, const ChunkFields& chunk, std::uint64_t first) {
  if (first % kernels::kPackedBlock != 0) {
    throw Error(ErrorCode::internal, text("packed weights from number ", first, " on, where no block begins"));
  }
  kernels::pack(chunk.encoding, masters.data(), chunk.weight, chunk.elements, first, masters.size());
}

void from_packed(const ChunkFields& chunk, std::uint64_t first, std::span<float> masters) {
  for (std::size_t i = 0; i < masters.size(); ++i) {
    masters[i] = kernels::scalar::packed_value(chunk.encoding, chunk.weight, chunk.elements, first + i);
  }
}

}  // namespace

ChunkFields chunk_fields(ComputeType type, std::uint64_t elements, std::byte* weight, std::byte* state,
                         Training training) {
  ChunkFields fields{.type = type, .elements = elements, .weight = weight, .rounded = training == Training::frozen};
  if (fields.rounded) return fields;
  if (state != nullptr && type == ComputeType::bf16) fields.remainder = reinterpret_cast<std::uint16_t*>(state);
  if (state != nullptr && type == ComputeType::fp16) fields.master = reinterpret_cast<float*>(state);
  return fields;
}

void to_chunk(std::span<const float> masters, const ChunkFields& chunk, std::uint64_t first) {
  check_range(chunk, first, masters.size());
  if (masters.empty()) return;
  if (kernels::is_packed(chunk.encoding)) return to_packed(masters, chunk, first);
  if (chunk.rounded && chunk.type != ComputeType::fp32) return to_rounded(masters, chunk, first);
  if (chunk.type == ComputeType::bf16) {
    kernels::split(masters.data(), bits16(chunk) + first, chunk.remainder + first, masters.size());
  } else if (chunk.type == ComputeType::fp16) {
    std::memcpy(chunk.master + first, masters.data(), masters.size_bytes());
    std::ranges::transform(masters, bits16(chunk) + first, kernels::round_fp16);
  } else {
    std::memcpy(chunk.weight + first * sizeof(float), masters.data(), masters.size_bytes());
  }
}

void from_chunk(const ChunkFields& chunk, std::uint64_t first, std::span<float> masters) {
  check_range(chunk, first, masters.size());
  if (masters.empty()) return;
  if (kernels::is_packed(chunk.encoding)) return from_packed(chunk, first, masters);
  if (chunk.rounded && chunk.type != ComputeType::fp32) return from_rounded(chunk, first, masters);
  if (chunk.type == ComputeType::bf16) {
    kernels::join(bits16(chunk) + first, chunk.remainder + first, masters.data(), masters.size());
  } else if (chunk.type == ComputeType::fp16) {
    std::memcpy(masters.data(), chunk.master + first, masters.size_bytes());
  } else {
    std::memcpy(masters.data(), chunk.weight + first * sizeof(float), masters.size_bytes());
  }
}

}  // namespace spillway::state
