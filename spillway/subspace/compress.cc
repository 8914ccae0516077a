#include "spillway/subspace/compress.h"

#include <algorithm>

namespace spillway::subspace {
namespace {

Bytes value_bytes(const kernels::Projector& it) noexcept {
  return it.nonzeros * it.stride() * sizeof(float);
}

/// A copy's values, then its places, and numbers by column.
Bytes copy_bytes(const kernels::Projector& it) noexcept {
  return value_bytes(it) * (it.is_scattered() ? 2 : 1) + column_index_size(it) * sizeof(std::uint32_t);
}

/// The projector as it lies from `at` on.
kernels::Projector copy_at(kernels::Projector it, std::byte* at) noexcept {
  const auto bytes = value_bytes(it);
  it.values = reinterpret_cast<const float*>(at);
  if (!it.is_scattered()) return it;
  it.places = reinterpret_cast<const std::uint32_t*>(at + bytes);
  it.by_column = reinterpret_cast<const std::uint32_t*>(at + 2 * bytes);
  return it;
}

}  // namespace

Compress::Compress(const state::Layout& layout, state::ComputeType type, const Subspaces& subspaces,
                   const sink::Arithmetic& where)
    : type_(type),
      subspaces_(subspaces),
      where_(where),
      copies_(layout.tensors().size()),
      arrived_(where.device.make_event()) {
  std::uint64_t at = 0;
  for (std::size_t t = 0; t < copies_.size(); ++t) {
    copies_[t].at = at;
    at += layout.tensors()[t].reduced.device_bytes() / sizeof(float);
  }
}

kernels::Projector Compress::projector(std::size_t tensor, unsigned side) {
  if (where_.workspace == nullptr) return subspaces_.side(tensor, side);
  const std::array pair{subspaces_.side(tensor, 0), subspaces_.side(tensor, 1)};
  auto& copy = copies_[tensor];
  auto* const first = where_.workspace + where_.sizes.auxiliary_at() + copy.at * sizeof(float);
  const std::array there{first, first + copy_bytes(pair[0])};
  if (const auto version = subspaces_.version(tensor); copy.version != version) {
    for (unsigned k = 0; k < 2; ++k) {
      const auto bytes = value_bytes(pair[k]);
      send(pair[k].values, there[k], bytes);
      if (!pair[k].is_scattered()) continue;
      copy.numbers[k].resize(column_index_size(pair[k]));
      number_columns(pair[k], copy.numbers[k].data());
      send(pair[k].places, there[k] + bytes, bytes);
      send(copy.numbers[k].data(), there[k] + 2 * bytes, copy.numbers[k].size() * sizeof(std::uint32_t));
    }
    copy.version = version;
  }
  return copy_at(pair[side], there[side]);
}

void Compress::send(const void* from, std::byte* to, Bytes bytes) {
  where_.device.copy(where_.stream, device::Direction::to_device, to, static_cast<const std::byte*>(from), bytes);
}

void Compress::fetch(std::span<const float> values, std::span<float> to) {
  if (where_.workspace == nullptr) return static_cast<void>(std::ranges::copy(values, to.begin()));
  where_.device.copy(where_.stream, device::Direction::from_device, reinterpret_cast<std::byte*>(to.data()),
                     reinterpret_cast<const std::byte*>(values.data()), values.size_bytes());
}

std::span<const float> Compress::here(std::span<const float> values) {
  if (where_.workspace == nullptr) return values;
  fetched_.resize(values.size());
  fetch(values, fetched_);
  where_.device.record(arrived_, where_.stream);
  where_.device.synchronise(arrived_);
  return fetched_;
}

void Compress::run(std::size_t tensor, unsigned side, const std::byte* in, std::size_t in_stride, std::size_t tokens,
                   std::byte* out) {
  where_.device.run(where_.stream, device::Compress{.type = type_,
                                                    .by = projector(tensor, side),
                                                    .in = in,
                                                    .in_stride = in_stride,
                                                    .tokens = tokens,
                                                    .out = out,
                                                    .out_stride = tokens});
}

}  // namespace spillway::subspace
