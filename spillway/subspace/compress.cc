#include "spillway/subspace/compress.h"

#include <algorithm>
#include <utility>

namespace spillway::subspace {
namespace {

std::uint64_t floats(const kernels::Projector& it) noexcept {
  return it.nonzeros * it.stride();
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
    at += layout.tensors()[t].reduced.refitted_bytes() / sizeof(float);
  }
}

kernels::Projector Compress::projector(std::size_t tensor, unsigned side) {
  auto out = subspaces_.side(tensor, side);
  if (where_.workspace == nullptr) return out;
  const auto p = subspaces_.side(tensor, 0), q = subspaces_.side(tensor, 1);
  auto& copy = copies_[tensor];
  auto* const there = reinterpret_cast<float*>(where_.workspace + where_.sizes.auxiliary_at()) + copy.at;
  if (const auto version = subspaces_.version(tensor); copy.version != version) {
    for (const auto& [from, to] : {std::pair(p, there), std::pair(q, there + floats(p))}) {
      where_.device.copy(where_.stream, device::Direction::to_device, reinterpret_cast<std::byte*>(to),
                         reinterpret_cast<const std::byte*>(from.values), floats(from) * sizeof(float));
    }
    copy.version = version;
  }
  out.values = side == 0 ? there : there + floats(p);
  return out;
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
