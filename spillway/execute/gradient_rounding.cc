// Places of the sums of a gradient, and their rounding to the type that it is kept in.
#include "spillway/execute/gradients.h"

namespace spillway::execute {

Gradients::Target Gradients::target(Bytes at, std::uint64_t sum_at, std::uint64_t elements,
                                    state::ComputeType type) const {
  // Chunks stored in fp32 are computed in fp32 in any case.
  Target out{.type = type, .given = traits(type).rounds ? given_ : type, .elements = elements};
  out.grad = arenas_.at(schedule_.buffers[(*pass_)[plan::Operand::gradient]]) + at;
  const bool in_place = !traits(type).rounds && !exchange_;
  out.place = {.lowest = in_place ? as_floats(out.grad) : nullptr, .elements = elements};
  if ((*pass_)[plan::Operand::gradient_sums] == plan::kNone || !summed()) return out;
  const auto& buffer = schedule_.buffers[(*pass_)[plan::Operand::gradient_sums]];
  auto* const sums = as_floats(arenas_.at(buffer)) + sum_at;
  out.place.stride = buffer.bytes / sizeof(float) / planned_sums_;
  out.place.others = traits(type_).rounds || exchange_ ? sums + out.place.stride : sums;
  if (!in_place) out.sum = out.place.lowest = sums;
  return out;
}

Gradients::Target Gradients::target_of(std::size_t tensor) const {
  const auto& it = layout_.tensors()[tensor];
  const auto type = type_of(it.spec.form, type_);
  return target(places_[tensor].grad, places_[tensor].sum, it.gradient_elements(), type);
}

void Gradients::finish_tensor(std::size_t tensor, const Target& to, const std::byte* values) {
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

void Gradients::add_digest(const Target& to, std::size_t chunk, const std::string& tensor) {
  if (digests_ == nullptr) return;
  const std::span<const std::byte> values(to.grad, to.elements * state::field_bytes(to.type).grad);
  digests_->add_gradient(tensor, chunk, values, schedule_.buffers[(*pass_)[plan::Operand::gradient]].on_device());
}

void Gradients::finish(const Target& to, const std::byte* values, double* squares) {
  const auto* sums = unrounded(to, values);
  run(device::Round{.type = to.type,
                    .sums = sums,
                    .values = values != nullptr ? values : to.grad,
                    .out = to.grad,
                    .n = to.elements,
                    .squares = squares});
}

const float* Gradients::unrounded(const Target& to, const std::byte* values) {
  if (values != nullptr) return to.given == to.type ? nullptr : reinterpret_cast<const float*>(values);
  return traits(to.type).rounds ? to.sum : nullptr;
}

}  // namespace spillway::execute
