#include "spillway/subspace/estimates.h"

#include <algorithm>
#include <cstring>

namespace spillway::subspace {
namespace {

using device::Sample;
using optim::RefitRecord;

static_assert(sizeof(RefitRecord) == Sample::kFields * sizeof(double));
static_assert(offsetof(RefitRecord, captured) == Sample::kFirst * sizeof(double));
static_assert(offsetof(RefitRecord, whole) == Sample::kSecond * sizeof(double));
static_assert(offsetof(RefitRecord, samples) == Sample::kSamples * sizeof(double));

template <class T>
T* at(std::byte* base, Bytes offset) {
  return reinterpret_cast<T*>(base + offset);
}

}  // namespace

Estimates::Estimates(const state::Layout& layout, Subspaces& subspaces, const sink::Arithmetic& where, bool shared)
    : layout_(layout),
      subspaces_(subspaces),
      where_(where),
      shared_(shared),
      places_(layout.tensors().size()),
      host_squares_(apart() ? 0 : where.sizes.seen_squares),
      records_(where.sizes.records),
      squares_(apart() ? at<double>(where.workspace, where.sizes.seen_squares_at()) : host_squares_.data()),
      made_(apart() ? at<double>(where.workspace, where.sizes.records_at()) : records_.data()) {
  std::uint64_t record = 0;
  for (const auto& block : layout.blocks()) {
    Place next;
    for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
      if (!layout.tensors()[t].reduced.any()) continue;
      places_[t] = {.square = next.square, .record = record};
      next.square += device::square_tiles(layout.tensors()[t].reduced.rows);
      record += Sample::kFields;
    }
  }
}

void Estimates::begin() {
  for (auto& place : places_) place.told = false;
  std::ranges::fill(records_, 0.0);
}

void Estimates::open(const state::Block& block) {
  for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
    if (!layout_.tensors()[t].reduced.any()) continue;
    places_[t].told = shared_;
    subspaces_.open(t);
  }
}

void Estimates::close(std::size_t tensor, std::span<const double> squares, std::span<float> seen, std::byte* out) {
  auto& place = places_[tensor];
  const bool samples = !seen.empty() && subspaces_.samples(tensor);
  if (samples) {
    auto* const values = reinterpret_cast<std::byte*>(seen.data());
    where_.device.run(where_.stream, device::Round{.type = device::Element::fp32,
                                                   .values = values,
                                                   .out = values,
                                                   .n = seen.size(),
                                                   .squares = squares_ + place.square});
  }
  Sample work{.first = squares.data(),
              .second = squares_ + place.square,
              .first_count = samples ? squares.size() : 0,
              .second_count = samples ? device::square_tiles(seen.size()) : 0,
              .scale = subspaces_.square_scale(),
              .out = reinterpret_cast<double*>(out),
              .copy = made_ + place.record};
  std::memcpy(work.record, &subspaces_.record(tensor), sizeof(work.record));
  where_.device.run(where_.stream, work);
  place.told = true;
}

void Estimates::replace(std::size_t tensor) {
  std::memcpy(made_ + places_[tensor].record, &subspaces_.record(tensor), sizeof(RefitRecord));
}

void Estimates::fetch() {
  if (!apart() || records_.empty()) return;
  where_.device.copy(where_.stream, device::Direction::from_device, reinterpret_cast<std::byte*>(records_.data()),
                     reinterpret_cast<const std::byte*>(made_), records_.size() * sizeof(double));
}

void Estimates::tell() {
  for (std::size_t t = 0; t < places_.size(); ++t) {
    if (!places_[t].told) continue;
    RefitRecord record;
    std::memcpy(&record, reinterpret_cast<const std::byte*>(records_.data() + places_[t].record), sizeof(record));
    subspaces_.note(t, record);
  }
}

}  // namespace spillway::subspace
