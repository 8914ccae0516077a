#include "spillway/execute/conversion.h"

#include "spillway/base/error.h"

namespace spillway::execute {

Conversion::Conversion(const plan::Description& description, const state::Layout& layout,
                       const plan::Schedule& schedule, Arenas arenas, const sink::Arithmetic& where,
                       const WeightSlots& slots)
    : description_(description), layout_(layout), schedule_(schedule), arenas_(arenas), where_(where), slots_(slots) {}

std::byte* Conversion::weights(const plan::Pass& pass) const {
  if (pass.weights.empty()) return nullptr;
  if (!plan::converts(description_, layout_, pass)) return arenas_.at(schedule_, pass.weights.front().here);
  auto* const copy = arenas_.at(schedule_, pass[plan::Operand::converted]);
  each_weight(pass, [&, to = copy](const state::Chunk& chunk, const std::byte* from) mutable {
    for (const auto& range : plan::ranges_at_once(layout_, chunk)) to = convert(chunk, range, from, to);
  });
  return copy;
}

std::byte* Conversion::convert(const state::Chunk& chunk, plan::ValueRange range, const std::byte* from,
                               std::byte* to) const {
  const auto type = plan::converted_type(description_, chunk);
  where_.device.run(where_.stream, device::Convert{.from = state::encoding_of(chunk.form, description_.rule().type),
                                                   .to = type,
                                                   .values = from,
                                                   .out = to,
                                                   .n = range.count,
                                                   .first = range.first,
                                                   .all = chunk.values()});
  return to + range.count * state::field_bytes(type).weight;
}

void Conversion::convert_pieces(const plan::Pass& pass, std::size_t tensor, std::uint64_t first,
                                std::uint64_t count) const {
  const auto spans = plan::piece_spans(layout_, tensor, first, count);
  if (layout_.tensors()[tensor].block != pass.block || !plan::converts(description_, layout_, pass)) {
    throw Error(ErrorCode::bad_input,
                text("tensor ", layout_.tensors()[tensor].spec.name, " is of another block than the pass"));
  }
  const auto unit = state::field_bytes(description_.computes()).weight;
  auto* const to =
      arenas_.at(schedule_, pass[plan::Operand::converted]) + plan::weight_first(description_, layout_, tensor) * unit;
  each_weight(pass, [&](const state::Chunk& chunk, const std::byte* from) {
    for (const auto& span : spans) {
      if (span.chunk == chunk.id) convert(chunk, span.values, from, to + span.first * unit);
    }
  });
}

}  // namespace spillway::execute
