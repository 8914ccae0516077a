#include "spillway/subspace/device_update.h"

#include <algorithm>
#include <span>

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

/// S by the optimizer, and what becomes of a weight that was 0 onto the matrix.
void DeviceSubspaceUpdate::change(const There& it, const kernels::UpdateStep& step, const optim::RefitRecord& record) {
  const auto& space = it.chunk.reduced;
  const auto core = locate_gradient(rule_, it.chunk, it.groups, 0, space.elements()).span;
  it.device.run(it.stream, device::AdamWDelta{.delta = delta_,
                                              .exp_avg = as<float>(core.moments[0]),
                                              .exp_avg_sq = as<float>(core.moments[1]),
                                              .grad = reinterpret_cast<const std::uint16_t*>(core.grad),
                                              .n = core.n,
                                              .step = step_inside(step, space, record)});
  const auto& span = layout_.spans(it.chunk.id).front();
  const auto matrix = locate(rule_, it.chunk, span, it.groups, 0, space.rows * space.columns).span;
  it.device.run(it.stream, device::Apply{.expansion = expansion_of(space, it.ours, delta_),
                                         .weight = as<std::uint16_t>(matrix.weight),
                                         .remainder = as<std::uint16_t>(matrix.remainder),
                                         .n = matrix.n,
                                         .keep = kept_by(step, layout_.tensors()[span.tensor].spec.decay)});
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

void DeviceSubspaceUpdate::begin(const There& it) const {
  const auto core = locate_gradient(rule_, it.chunk, it.groups, 0, it.chunk.reduced.elements()).span;
  for (std::size_t m = 0; m < rule_.moments(); ++m) {
    it.device.fill(it.stream, core.moments[m], 0, core.n * sizeof(float));
  }
}

/// On the host, and back.
void DeviceSubspaceUpdate::carry(const There& it) {
  using device::Direction;
  const auto bytes = optim::projector_fields(it.chunk.reduced).bytes;
  const auto core = locate_gradient(rule_, it.chunk, it.groups, 0, it.chunk.reduced.elements()).span;
  before_.resize(bytes);
  after_.resize(bytes);
  values_.resize(core.n);
  auto* const values = reinterpret_cast<std::byte*>(values_.data());
  it.device.copy(it.stream, Direction::from_device, before_.data(), it.ours, bytes);
  it.device.copy(it.stream, Direction::from_device, after_.data(), it.given, bytes);
  for (std::size_t m = 0; m < rule_.moments(); ++m) {
    it.device.copy(it.stream, Direction::from_device, values, core.moments[m], core.n * sizeof(float));
    wait(it);
    carry_over(it.chunk.reduced, before_.data(), after_.data(), m, values_);
    it.device.copy(it.stream, Direction::to_device, core.moments[m], values, core.n * sizeof(float));
    wait(it);
  }
}

void DeviceSubspaceUpdate::wait(const There& it) {
  if (!arrived_) arrived_ = it.device.make_event();
  it.device.record(*arrived_, it.stream);
  it.device.synchronise(*arrived_);
}

}  // namespace spillway::subspace
