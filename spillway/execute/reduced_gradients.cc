#include "spillway/execute/reduced_gradients.h"

#include <algorithm>

#include "spillway/base/error.h"

namespace spillway::execute {
namespace {

constexpr std::uint8_t kNotANumber = 0xFF;  ///< each byte of a double that is none

}  // namespace

ReducedGradients::ReducedGradients(const plan::Description& description, const state::Layout& layout,
                                   sink::GradientSink& sink, const sink::Arithmetic& where)
    : layout_(layout),
      sink_(sink),
      where_(where),
      by_rank_(description.virtual_ranks > 1),
      sends_(where.workspace != nullptr && description.is_shared()),
      count_(description.sample_sums()),
      sums_(where.device, where.stream),
      samples_(layout.tensors().size()) {
  const bool apart = where.workspace != nullptr;
  std::uint64_t first = 0;
  for (const auto& block : layout.blocks()) {
    // Sums are of one pass at a time; those that are sent may be of several.
    if (!description.is_shared() || apart) first = 0;
    for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
      samples_[t].first = first;
      samples_[t].sent = sent_;
      first += rows(t);
      sent_ += rows(t);
    }
    stride_ = std::max(stride_, first);
  }
  if (!apart || sends_) host_.resize((sends_ ? sent_ : stride_) * count_);
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

RankSums::Place ReducedGradients::sent(std::size_t tensor) {
  if (!sends_) return sums(tensor);
  auto* const lowest = host_.data() + samples_[tensor].sent;
  return {.lowest = lowest, .others = lowest + sent_, .stride = sent_, .elements = rows(tensor)};
}

void ReducedGradients::take(std::size_t tensor, std::span<const float> sample, std::uint64_t micro_batch) {
  const auto& it = layout_.tensors().at(tensor);
  if (!it.reduced.any() || sample.size() != it.reduced.rows) {
    throw Error(ErrorCode::bad_input, text("a sample of ", sample.size(), " rows for the gradient of ", it.spec.name,
                                           ", of which ", it.reduced.rows, " are taken"));
  }
  auto& to = samples_[tensor];
  to.any = true;
  sums_.add(sums(tensor), to.progress, sample.data(), micro_batch);
}

void ReducedGradients::finish(std::size_t tensor) {
  if (!sums_.any()) return;
  sums_.finish(sums(tensor), samples_[tensor].progress);
  const auto from = sums(tensor), to = sent(tensor);
  for (unsigned i = 0; sends_ && i < count_; ++i) {
    where_.device.copy(where_.stream, device::Direction::from_device, reinterpret_cast<std::byte*>(to.sum(i)),
                       reinterpret_cast<const std::byte*>(from.sum(i)), to.elements * sizeof(float));
  }
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
