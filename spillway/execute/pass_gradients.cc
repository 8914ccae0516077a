#include "spillway/execute/pass_gradients.h"

#include "spillway/base/error.h"

namespace spillway::execute {

using plan::PassKind;

PassGradients::PassGradients(const RunPlan& plan, Resources& resources, const Passes& passes, Gradients& gradients)
    : layout_(plan.layout), resources_(resources), passes_(passes), gradients_(gradients) {}

void PassGradients::require_trainable(const plan::Pass& pass, const char* call) const {
  if (pass[plan::Operand::gradient] != plan::kNone) return;
  throw Error(ErrorCode::bad_input, text(call, " of ", layout_.blocks()[pass.block].name, ", which is frozen"));
}

void PassGradients::layer(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch) {
  require_trainable(passes_.open(PassKind::backward, "gradient()"), "gradient()");
  gradients_.take(tensor, values, micro_batch);
}

SumLoan PassGradients::lend_sum(std::size_t tensor, std::uint64_t micro_batch) {
  require_trainable(passes_.open(PassKind::backward, "lend_sum()"), "lend_sum()");
  return gradients_.lend_sum(tensor, micro_batch);
}

void PassGradients::end_sum(std::size_t tensor, std::uint64_t micro_batch) {
  require_trainable(passes_.open(PassKind::backward, "end_sum()"), "end_sum()");
  gradients_.end_sum(tensor, micro_batch);
}

void PassGradients::head(const std::byte* values, std::uint64_t micro_batch) {
  require_trainable(passes_.open(PassKind::head_gradient, "head_gradient()"), "head_gradient()");
  gradients_.take_slice(values, micro_batch);
}

void PassGradients::embedding(const std::byte* values) {
  static_cast<void>(passes_.open(PassKind::embedding_backward, "embedding_backward()"));
  gradients_.take_sparse(values);
}

// ---- reduced

sink::GradientSink& PassGradients::sink_of(std::size_t tensor, const char* call) const {
  const auto& pass = passes_.open(PassKind::backward, call);
  if (tensor >= layout_.tensors().size() || layout_.tensors()[tensor].block != pass.block) {
    throw Error(ErrorCode::bad_input, text(call, " of tensor number ", tensor, " outside its block's pass"));
  }
  return resources_.gradient_sink();
}

bool PassGradients::wants_whole_gradient(std::size_t tensor, std::uint64_t micro_batch) const {
  return sink_of(tensor, "wants_whole_gradient()").wants_whole(tensor, micro_batch);
}

void PassGradients::whole_gradient(std::size_t tensor, std::span<const float> gradient) {
  sink_of(tensor, "whole_gradient()").take_whole(tensor, gradient);
}

void PassGradients::compress(std::size_t tensor, unsigned side, const std::byte* in, std::size_t in_stride,
                             std::size_t tokens, std::byte* out) {
  sink_of(tensor, "compress()").compress(tensor, side, in, in_stride, tokens, out);
}

void PassGradients::signs(std::size_t tensor, std::span<float> out) const {
  sink_of(tensor, "signs()").signs(tensor, out);
}

void PassGradients::sample(std::size_t tensor, std::span<const float> seen, std::uint64_t micro_batch) {
  static_cast<void>(sink_of(tensor, "sample()"));
  gradients_.take_sample(tensor, seen, micro_batch);
}

}  // namespace spillway::execute
