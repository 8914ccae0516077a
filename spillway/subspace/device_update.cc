#include "spillway/subspace/device_update.h"

#include <algorithm>
#include <span>

#include "spillway/kernels/moments.h"
#include "spillway/subspace/update.h"

namespace spillway::subspace {
namespace {

template <class T>
T* as(std::byte* at) {
  return reinterpret_cast<T*>(at);
}

/// From the device's memory to its memory, whole floats.
device::Sum copy_there(const std::byte* from, std::byte* to, Bytes bytes) {
  return {
      .type = device::Element::fp32, .values = from, .sum = as<float>(to), .n = bytes / sizeof(float), .first = true};
}

/// Of the scales of so many codes.
Bytes scale_bytes(std::uint64_t codes) {
  return ceil_div(codes, kernels::kQuantBlock) * sizeof(float);
}

}  // namespace

void DeviceSubspaceUpdate::run(device::Device& device, device::Stream stream, const state::Chunk& chunk,
                               const state::GroupPointers& groups, const kernels::UpdateStep& step) {
  const There it{.device = device,
                 .stream = stream,
                 .chunk = chunk,
                 .groups = groups,
                 .ours = groups.state + state_fields(rule_, chunk).auxiliary,
                 .given = groups.grad + gradient_value_bytes(rule_, chunk)};
  auto [before, after] = subspaces_.change(layout_.spans(chunk.id).front().tensor);
  if (made_with(before, after)) {
    device.run(stream, copy_there(it.given, it.ours, optim::projector_fields(chunk.reduced).bytes));
    before = after;
  }
  change(it, step, before);
  adopt(it, before, after);
}

/// S by the optimizer, and the matrix by what becomes of a weight that was 0.
void DeviceSubspaceUpdate::change(const There& it, const kernels::UpdateStep& step, const optim::RefitRecord& record) {
  const auto& space = it.chunk.reduced;
  auto core = moments_of(it);
  core.span.weight = reinterpret_cast<std::byte*>(delta_);
  it.device.run(
      it.stream,
      device::UpdateDelta{.moments = core.form.moments, .span = core.span, .step = step_inside(step, space, record)});
  if (traits(change_type(rule_, it.chunk)).rounds) {
    const auto n = space.elements();
    auto* const rounded = reinterpret_cast<std::byte*>(delta_ + n);
    convert(it, reinterpret_cast<std::byte*>(delta_), rounded, Way::round);
    convert(it, rounded, reinterpret_cast<std::byte*>(delta_), Way::widen);
  }
  expand(it, step, delta_);
}

/// The change between fp32 and the type that it is sent in.
void DeviceSubspaceUpdate::convert(const There& it, const std::byte* from, std::byte* to, Way way) const {
  const auto type = change_type(rule_, it.chunk), fp32 = kernels::Element::fp32;
  it.device.run(it.stream, device::Convert{.from = traits(way == Way::round ? fp32 : type).encoding,
                                           .to = way == Way::round ? type : fp32,
                                           .values = from,
                                           .out = to,
                                           .n = it.chunk.reduced.elements()});
}

void DeviceSubspaceUpdate::apply(device::Device& device, device::Stream stream, const state::Chunk& chunk,
                                 const state::GroupPointers& groups, const kernels::UpdateStep& step) {
  auto* const pair = groups.change + change_value_bytes(rule_, chunk);
  const There it{.device = device, .stream = stream, .chunk = chunk, .groups = groups, .ours = pair};
  if (widened_change_bytes(rule_, chunk) == 0) return expand(it, step, as<float>(groups.change));
  auto* const widened = groups.change + change_bytes(rule_, chunk);
  convert(it, groups.change, widened, Way::widen);
  expand(it, step, as<float>(widened));
}

/// Adds the change of S, through the pair, to the matrix.
void DeviceSubspaceUpdate::expand(const There& it, const kernels::UpdateStep& step, const float* delta) const {
  const auto& space = it.chunk.reduced;
  const auto& span = layout_.spans(it.chunk.id).front();
  const auto matrix = locate(rule_, it.chunk, span, it.groups, 0, space.rows * space.columns).span;
  it.device.run(it.stream, device::Apply{.expansion = expansion_of(space, it.ours, delta, step),
                                         .weight = as<std::uint16_t>(matrix.weight),
                                         .remainder = as<std::uint16_t>(matrix.remainder),
                                         .n = matrix.n,
                                         .keep = kept_by(step, layout_.tensors()[span.tensor].spec.decay),
                                         .index = matrix.index});
}

/// The gradient's record, and its pair where that is another, become the state's.
void DeviceSubspaceUpdate::adopt(const There& it, const optim::RefitRecord& before, const optim::RefitRecord& after) {
  const bool other = before.refits != after.refits;
  if (before.begun != after.begun) {
    begin(it);
  } else if (other) {
    carry(it);
  }
  const auto bytes = other ? optim::projector_fields(it.chunk.reduced).bytes : sizeof(after);
  it.device.run(it.stream, copy_there(it.given, it.ours, bytes));
}

/// Gradient and moments of S.
state::Located DeviceSubspaceUpdate::moments_of(const There& it) const {
  return locate_gradient(rule_, it.chunk, it.groups, 0, it.chunk.reduced.elements());
}

/// Moments of 0 are zeros in every format, and so are their scales.
void DeviceSubspaceUpdate::begin(const There& it) const {
  const auto core = moments_of(it);
  const auto& kept = traits(core.form.moments);
  for (std::size_t m = 0; m < rule_.moments(); ++m) {
    it.device.fill(it.stream, core.span.moments[m], 0, core.span.n * kept.bytes);
    if (!kept.is_scaled) continue;
    it.device.fill(it.stream, reinterpret_cast<std::byte*>(core.span.scales[m]), 0, scale_bytes(core.span.n));
  }
}

/// On the host, and back.
void DeviceSubspaceUpdate::carry(const There& it) {
  using device::Direction;
  const auto bytes = optim::projector_fields(it.chunk.reduced).bytes;
  const auto core = moments_of(it);
  const auto& kept = traits(core.form.moments);
  before_.resize(bytes);
  after_.resize(bytes);
  values_.resize(core.span.n);
  codes_.resize(core.span.n * kept.bytes);
  scales_.resize(kept.is_scaled ? scale_bytes(core.span.n) / sizeof(float) : 0);
  it.device.copy(it.stream, Direction::from_device, before_.data(), it.ours, bytes);
  it.device.copy(it.stream, Direction::from_device, after_.data(), it.given, bytes);
  const auto scales = std::as_writable_bytes(std::span(scales_));
  for (std::size_t m = 0; m < rule_.moments(); ++m) {
    auto* const their_scales = reinterpret_cast<std::byte*>(core.span.scales[m]);
    it.device.copy(it.stream, Direction::from_device, codes_.data(), core.span.moments[m], codes_.size());
    it.device.copy(it.stream, Direction::from_device, scales.data(), their_scales, scales.size());
    wait(it);
    kept.decode(m, codes_.data(), scales_.data(), values_.data(), values_.size());
    carry_over(it.chunk.reduced, before_.data(), after_.data(), m, values_);
    kept.encode(m, values_.data(), codes_.data(), scales_.data(), values_.size());
    it.device.copy(it.stream, Direction::to_device, core.span.moments[m], codes_.data(), codes_.size());
    it.device.copy(it.stream, Direction::to_device, their_scales, scales.data(), scales.size());
    wait(it);
  }
}

void DeviceSubspaceUpdate::wait(const There& it) {
  if (!arrived_) arrived_ = it.device.make_event();
  it.device.record(*arrived_, it.stream);
  it.device.synchronise(*arrived_);
}

}  // namespace spillway::subspace
