// The rounding of gradients to the type that they are kept in.
#include "spillway/execute/gradients.h"

namespace spillway::execute {

void Gradients::take_slice(const std::byte* values, std::uint64_t micro_batch) {
  const auto& block = layout_.blocks()[pass_->block];
  const auto chunk = block.first_chunk + pass_->slice;
  const auto to = targets_.find_slice(*pass_, layout_.chunks()[chunk].used);
  if (!take(to, seen_[0], values, micro_batch)) return;
  const bool tied = table_.has(pass_->block);
  const auto* given = summed() ? nullptr : values;
  finish(to, given, tied ? nullptr : squares_ + slots_.slice(chunk));
  add_digest(to, chunk, block.name);
  if (tied) table_.end_slice(pass_->slice, to.grad, to.unrounded(given));
}

void Gradients::finish_tensor(std::size_t tensor, const GradientTarget& to, const std::byte* values) {
  const auto pieces = slots_.pieces(tensor);
  const auto in = state::field_bytes(to.given).grad, out = state::field_bytes(to.type).grad;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    auto part = to;
    part.grad += pieces[i].first * out;
    if (part.sum != nullptr) part.sum += pieces[i].first;
    part.elements = pieces[i].elements;
    finish(part, values == nullptr ? nullptr : values + pieces[i].first * in, squares_ + slots_.piece(tensor, i));
    add_digest(part, pieces[i].chunk, layout_.tensors()[tensor].spec.name);
  }
}

void Gradients::add_digest(const GradientTarget& to, std::size_t chunk, const std::string& tensor) {
  if (digests_ == nullptr) return;
  const std::span<const std::byte> values(to.grad, to.elements * state::field_bytes(to.type).grad);
  digests_->add_gradient(tensor, chunk, values, schedule_.buffers[(*pass_)[plan::Operand::gradient]].on_device());
}

void Gradients::finish(const GradientTarget& to, const std::byte* values, double* squares) {
  const auto* sums = to.unrounded(values);
  run(device::Round{.type = to.type,
                    .sums = sums,
                    .values = values != nullptr ? values : to.grad,
                    .out = to.grad,
                    .n = to.elements,
                    .squares = squares});
}

}  // namespace spillway::execute
