#include "spillway/execute/gradient_targets.h"

namespace spillway::execute {
namespace {

float* as_floats(std::byte* at) noexcept {
  return reinterpret_cast<float*>(at);
}

}  // namespace

const float* GradientTarget::unrounded(const std::byte* values) const {
  if (values != nullptr) return given == type ? nullptr : reinterpret_cast<const float*>(values);
  return traits(type).rounds ? sum : nullptr;
}

GradientTargets::GradientTargets(const plan::Schedule& schedule, const state::Layout& layout,
                                 const plan::Description& description, Arenas arenas)
    : schedule_(schedule),
      layout_(layout),
      arenas_(arenas),
      type_(description.weight_dtype),
      given_(description.computes()),
      planned_sums_(description.gradient_sums()),
      shared_(description.is_shared()) {
  place_tensors(description.rule());
}

void GradientTargets::place_tensors(const state::UpdateRule& rule) {
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

GradientTarget GradientTargets::at(const plan::Pass& pass, Bytes grad, std::uint64_t sum, std::uint64_t elements,
                                   state::ComputeType type) const {
  // Chunks stored in fp32 are computed in fp32 in any case.
  GradientTarget out{.type = type, .given = traits(type).rounds ? given_ : type, .elements = elements};
  out.grad = arenas_.at(schedule_.buffers[pass[plan::Operand::gradient]]) + grad;
  const bool in_place = !traits(type).rounds && !shared_;
  out.place = {.lowest = in_place ? as_floats(out.grad) : nullptr, .elements = elements};
  if (pass[plan::Operand::gradient_sums] == plan::kNone || !summed_) return out;
  const auto& buffer = schedule_.buffers[pass[plan::Operand::gradient_sums]];
  auto* const sums = as_floats(arenas_.at(buffer)) + sum;
  out.place.stride = buffer.bytes / sizeof(float) / planned_sums_;
  out.place.others = traits(type_).rounds || shared_ ? sums + out.place.stride : sums;
  if (!in_place) out.sum = out.place.lowest = sums;
  return out;
}

GradientTarget GradientTargets::find_target(const plan::Pass& pass, std::size_t tensor) const {
  const auto& it = layout_.tensors()[tensor];
  const auto type = type_of(it.spec.form, type_);
  return at(pass, places_[tensor].grad, places_[tensor].sum, it.gradient_elements(), type);
}

}  // namespace spillway::execute
