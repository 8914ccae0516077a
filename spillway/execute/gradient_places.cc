// Places of the gradients of a layer in the buffer of its pass.
#include "spillway/execute/gradients.h"

namespace spillway::execute {

void Gradients::place_tensors(const state::UpdateRule& rule) {
  places_.resize(layout_.tensors().size());
  for (const auto& block : layout_.blocks()) {
    Place at;
    for (auto c = block.first_chunk; c < block.first_chunk + block.trainable_chunks; ++c) {
      const auto& chunk = layout_.chunks()[c];
      at.auxiliary = at.grad + gradient_value_bytes(rule, chunk);
      for (const auto& span : layout_.spans(c)) {
        if (span.tensor_first > 0) continue;
        const auto inner = span.chunk_first;  // of what is reduced 0
        const auto bytes = state::field_bytes(rule_of(rule, chunk).type).grad;
        places_[span.tensor] = {at.grad + inner * bytes, at.sum + inner, at.auxiliary};
      }
      at.grad += grad_bytes(rule, chunk);
      at.sum += chunk.gradient_elements;
    }
  }
}

}  // namespace spillway::execute
