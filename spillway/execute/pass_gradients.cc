#include "spillway/execute/pass_gradients.h"

#include "spillway/base/error.h"

namespace spillway::execute {

using plan::PassKind;

PassGradients::PassGradients(const RunPlan& plan, Resources& resources, const Passes& passes, Gradients& gradients)
    : layout_(plan.layout),
      resources_(resources),
      passes_(passes),
      gradients_(gradients),
      compress_(plan.layout, plan.description.computes(), resources.subspaces(), resources.arithmetic()) {}

void PassGradients::require_trainable(const plan::Pass& pass, const char* call) const {
  if (pass.grad != plan::kNone) return;
  throw Error(ErrorCode::bad_input, text(call, " of ", layout_.blocks()[pass.block].name, ", which is frozen"));
}

void PassGradients::layer(std::size_t tensor, const std::byte* values, std::uint64_t micro_batch) {
  require_trainable(passes_.open(PassKind::backward, "gradient()"), "gradient()");
  gradients_.take(tensor, values, micro_batch);
}

void PassGradients::head(const std::byte* values, std::uint64_t micro_batch) {
  require_trainable(passes_.open(PassKind::head_gradient, "head_gradient()"), "head_gradient()");
  gradients_.take_slice(values, micro_batch);
}

void PassGradients::embedding(const std::byte* values) {
  static_cast<void>(passes_.open(PassKind::embedding_backward, "embedding_backward()"));
  gradients_.take_rows(values);
}

// ---- subspaces

Subspaces& PassGradients::subspaces(std::size_t tensor, const char* call) const {
  const auto& pass = passes_.open(PassKind::backward, call);
  if (tensor >= layout_.tensors().size() || layout_.tensors()[tensor].block != pass.block) {
    throw Error(ErrorCode::bad_input, text(call, " of tensor number ", tensor, " outside its block's pass"));
  }
  return resources_.subspaces();
}

bool PassGradients::learns_projectors(std::size_t tensor) const {
  return subspaces(tensor, "learns_projectors()").learns(tensor);
}

void PassGradients::learn_projectors(std::size_t tensor, std::span<const float> gradient) {
  auto& to = subspaces(tensor, "learn_projectors()");
  to.check(tensor, gradient.size());
  if (const auto room = to.leave(tensor); !room.empty()) return compress_.fetch(gradient, room);
  to.learn(tensor, compress_.here(gradient), resources_.parallel_for());
}

void PassGradients::compress(std::size_t tensor, unsigned side, const std::byte* in, std::size_t in_stride,
                             std::size_t tokens, std::byte* out) {
  static_cast<void>(subspaces(tensor, "compress()"));
  compress_.run(tensor, side, in, in_stride, tokens, out);
}

void PassGradients::signs(std::size_t tensor, std::span<float> out) const {
  subspaces(tensor, "signs()").signs(tensor, out);
}

void PassGradients::sample(std::size_t tensor, std::span<const float> seen) {
  static_cast<void>(subspaces(tensor, "sample()"));
  gradients_.take_seen(tensor, seen);
}

}  // namespace spillway::execute
