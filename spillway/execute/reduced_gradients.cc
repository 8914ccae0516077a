#include "spillway/execute/reduced_gradients.h"

#include <algorithm>

#include "spillway/base/error.h"

namespace spillway::execute {
namespace {

constexpr std::uint8_t kNotANumber = 0xFF;  ///< each byte of a double that is none

}  // namespace

ReducedGradients::ReducedGradients(const plan::Description& description, const state::Layout& layout,
                                   sink::GradientSink& sink, const Arithmetic& where)
    : layout_(layout),
      sink_(sink),
      where_(where),
      by_rank_(description.virtual_ranks > 1),
      sums_(where.device, where.stream),
      samples_(layout.tensors().size()) {
  std::uint64_t first = 0;
  for (const auto& block : layout.blocks()) {
    if (!description.is_shared()) first = 0;  // sums are of one pass at a time; those that are sent may be of several
    for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
      samples_[t].first = first;
      first += rows(t);
    }
    stride_ = std::max(stride_, first);
  }
  const bool apart = where.workspace != nullptr;
  if (!apart) host_.resize(stride_ * description.sample_sums());
  memory_ = apart ? reinterpret_cast<float*>(where.workspace + where.sizes.seen_at()) : host_.data();
}

void ReducedGradients::open(const state::Block& block) {
  for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
    samples_[t].any = by_rank_;
    samples_[t].progress = {};
  }
}

RankSums::Place ReducedGradients::sums(std::size_t tensor) const {
  auto* const lowest = memory_ + samples_[tensor].first;
  return {.lowest = lowest, .others = lowest + stride_, .stride = stride_, .elements = rows(tensor)};
}

void ReducedGradients::take(std::size_t tensor, std::span<const float> sample, std::uint64_t micro_batch) {
  const auto& it = layout_.tensors().at(tensor);
  if (!it.reduced.any() || sample.size() != it.reduced.rows) {
    throw Error(ErrorCode::bad_input, text("a sample of ", sample.size(), " rows for the gradient of ", it.spec.name,
                                           ", of which ", it.reduced.rows, " are taken"));
  }
  auto& to = samples_[tensor];
  to.any = true;
  sums_.add(sums(tensor), to.progress, device::Element::fp32, reinterpret_cast<const std::byte*>(sample.data()),
            micro_batch);
}

void ReducedGradients::finish(std::size_t tensor) {
  if (sums_.any()) sums_.finish(sums(tensor), samples_[tensor].progress);
}

void ReducedGradients::close(std::size_t tensor, bool any, std::span<double> squares, std::byte* out) {
  auto* const there = reinterpret_cast<std::byte*>(squares.data());
  if (!any) where_.device.fill(where_.stream, there, 0, squares.size_bytes());
  const bool lost = any && !by_rank_ && !sink_.ready(tensor);
  if (lost) where_.device.fill(where_.stream, there, kNotANumber, sizeof(double));
  const auto sample = samples_[tensor].any ? std::span(sums(tensor).lowest, rows(tensor)) : std::span<float>();
  sink_.close(tensor, squares, sample, out);
}

void ReducedGradients::close(std::size_t tensor, std::span<const double> squares, float* sample, std::byte* out) {
  sink_.close(tensor, squares, {sample, rows(tensor)}, out);
}

}  // namespace spillway::execute
