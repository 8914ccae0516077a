#include "spillway/state/convert.h"

#include <algorithm>
#include <array>
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
  const bool remainder = chunk.rounded || chunk.remainder != nullptr || traits(chunk.type).remainder == 0;
  if (chunk.weight == nullptr || !remainder) {
    throw Error(ErrorCode::internal, "masters of a chunk without its weight or remainder");
  }
}

const std::uint16_t* halves(const std::byte* at) {
  return reinterpret_cast<const std::uint16_t*>(at);
}
std::uint16_t* halves(std::byte* at) {
  return reinterpret_cast<std::uint16_t*>(at);
}

/// What weights of a type, and what lies beside them, are of masters. `round` gives the weights that `split` would.
struct Codec {
  void (*split)(const float* masters, std::byte* weight, std::byte* remainder, std::size_t n);
  void (*join)(const std::byte* weight, const std::byte* remainder, float* masters, std::size_t n);
  void (*round)(const float* masters, std::byte* weight, std::size_t n);
  void (*widen)(const std::byte* weight, float* masters, std::size_t n);
};

std::uint16_t upper(float master) {
  std::uint16_t weight = 0, remainder = 0;
  kernels::scalar::split_bits(std::bit_cast<std::uint32_t>(master), weight, remainder);
  return weight;
}

void split_bf16(const float* masters, std::byte* weight, std::byte* remainder, std::size_t n) {
  kernels::split(masters, halves(weight), halves(remainder), n);
}
void join_bf16(const std::byte* weight, const std::byte* remainder, float* masters, std::size_t n) {
  kernels::join(halves(weight), halves(remainder), masters, n);
}
template <std::uint16_t (*round)(float)>
void round_each(const float* masters, std::byte* weight, std::size_t n) {
  std::transform(masters, masters + n, halves(weight), round);
}
template <float (*widen)(std::uint16_t)>
void widen_each(const std::byte* weight, float* masters, std::size_t n) {
  std::transform(halves(weight), halves(weight) + n, masters, widen);
}

void split_fp16(const float* masters, std::byte* weight, std::byte* remainder, std::size_t n) {
  std::memcpy(remainder, masters, n * sizeof(float));
  round_each<kernels::round_fp16>(masters, weight, n);
}
void join_fp16(const std::byte* /*weight*/, const std::byte* remainder, float* masters, std::size_t n) {
  std::memcpy(masters, remainder, n * sizeof(float));
}

void split_fp32(const float* masters, std::byte* weight, std::byte* /*remainder*/, std::size_t n) {
  std::memcpy(weight, masters, n * sizeof(float));
}
void join_fp32(const std::byte* weight, const std::byte* /*remainder*/, float* masters, std::size_t n) {
  std::memcpy(masters, weight, n * sizeof(float));
}
void round_fp32(const float* masters, std::byte* weight, std::size_t n) {
  split_fp32(masters, weight, nullptr, n);
}
void widen_fp32(const std::byte* weight, float* masters, std::size_t n) {
  join_fp32(weight, nullptr, masters, n);
}

/// As ComputeType.
constexpr std::array<Codec, kernels::kElements.size()> kCodecs{{
    {split_bf16, join_bf16, round_each<upper>, widen_each<kernels::widen>},
    {split_fp16, join_fp16, round_each<kernels::round_fp16>, widen_each<kernels::widen_fp16>},
    {split_fp32, join_fp32, round_fp32, widen_fp32},
}};

/// Null where the type has none.
std::byte* remainder_at(const ChunkFields& chunk, std::uint64_t first) {
  return chunk.remainder == nullptr ? nullptr : chunk.remainder + first * traits(chunk.type).remainder;
}

void to_packed(std::span<const float> masters, const ChunkFields& chunk, std::uint64_t first) {
  if (first % kernels::group_values(chunk.encoding) != 0) {
    throw Error(ErrorCode::internal, text("packed weights from number ", first, " on, where no block begins"));
  }
  kernels::pack(chunk.encoding, masters.data(), chunk.weight, chunk.elements, first, masters.size(), chunk.scale_mean);
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
  if (!fields.rounded && traits(type).remainder > 0) fields.remainder = state;
  return fields;
}

void to_chunk(std::span<const float> masters, const ChunkFields& chunk, std::uint64_t first) {
  check_range(chunk, first, masters.size());
  if (masters.empty()) return;
  if (kernels::is_packed(chunk.encoding)) return to_packed(masters, chunk, first);
  const auto& codec = kCodecs[static_cast<std::size_t>(chunk.type)];
  auto* const weight = chunk.weight + first * traits(chunk.type).bytes;
  if (chunk.rounded) return codec.round(masters.data(), weight, masters.size());
  codec.split(masters.data(), weight, remainder_at(chunk, first), masters.size());
}

void from_chunk(const ChunkFields& chunk, std::uint64_t first, std::span<float> masters) {
  check_range(chunk, first, masters.size());
  if (masters.empty()) return;
  if (kernels::is_packed(chunk.encoding)) return from_packed(chunk, first, masters);
  const auto& codec = kCodecs[static_cast<std::size_t>(chunk.type)];
  const auto* const weight = chunk.weight + first * traits(chunk.type).bytes;
  if (chunk.rounded) return codec.widen(weight, masters.data(), masters.size());
  codec.join(weight, remainder_at(chunk, first), masters.data(), masters.size());
}

void set_masters(ComputeType type, const std::byte* weight, std::byte* remainder, std::size_t n) {
  constexpr std::size_t kPiece = 1024;
  std::array<float, kPiece> masters;                      // NOLINT: filled below
  std::array<std::byte, kPiece * sizeof(float)> weights;  // NOLINT: the same
  const auto& codec = kCodecs[static_cast<std::size_t>(type)];
  const auto& of = traits(type);
  for (std::size_t at = 0; at < n && of.remainder > 0; at += kPiece) {
    const auto count = std::min(kPiece, n - at);
    codec.widen(weight + at * of.bytes, masters.data(), count);
    codec.split(masters.data(), weights.data(), remainder + at * of.remainder, count);
  }
}

}  // namespace spillway::state
