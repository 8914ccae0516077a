#include "research/study/host_memory.h"

#include <bit>

namespace spillway::study {
namespace {

constexpr Bytes kElement = 2;
/// DeepSpeed's default: a subgroup of 1e9 elements, fp32, in four buffers.
constexpr Bytes kStaging = Bytes{1'000'000'000} * 4 * 4;
constexpr std::uint64_t kMatricesPerLayer = 7;

Bytes gradients(const DecoderShape& shape) {
  return shape.parameters() * kElement;
}

}  // namespace

HostMemory zero_infinity_memory(const DecoderShape& shape, const PoolSlots& slots) {
  const auto pool = (slots.tables + kMatricesPerLayer * slots.layers) * shape.table() * kElement;
  return {.pool = std::bit_ceil(pool),
          .gradients = std::bit_ceil(gradients(shape)),
          .staging = std::bit_ceil(kStaging),
          .check = gradients(shape) * 3 / 2};
}

HostMemory memascend_memory(const DecoderShape& shape, const PoolSlots& slots) {
  const auto layer = shape.hidden * (3 * shape.feed_forward + 2 * shape.query + 2 * shape.key);
  return {.pool = (slots.tables * shape.table() + slots.layers * layer) * kElement,
          .gradients = gradients(shape),
          .staging = kStaging};
}

}  // namespace spillway::study
