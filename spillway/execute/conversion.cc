#include "spillway/execute/conversion.h"

#include "spillway/base/error.h"

namespace spillway::execute {

Conversion::Conversion(const plan::Description& description, const state::Layout& layout,
                       const plan::Schedule& schedule, Arenas arenas, const sink::Arithmetic& where)
    : description_(description), layout_(layout), schedule_(schedule), arenas_(arenas), where_(where) {}

std::byte* Conversion::weights(const plan::Pass& pass) const {
  auto* const kept = arenas_.at(schedule_, pass[plan::Operand::weights]);
  if (kept == nullptr || !plan::converts(description_, layout_, pass)) return kept;
  auto* const copy = arenas_.at(schedule_, pass[plan::Operand::converted]);
  convert(pass, kept, copy);
  return copy;
}

void Conversion::convert(const plan::Pass& pass, const std::byte* from, std::byte* to) const {
  const auto chunks = plan::chunks_of(layout_, pass);
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    const auto& chunk = layout_.chunks()[c];
    for (const auto& range : plan::ranges_at_once(layout_, chunk)) to = convert(chunk, range, from, to);
    from += weight_bytes(description_.rule(), chunk);
  }
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
  const auto* from = arenas_.at(schedule_, pass[plan::Operand::weights]);
  auto c = layout_.blocks()[pass.block].first_chunk;
  for (const auto& span : spans) {
    for (; c < span.chunk; ++c) from += weight_bytes(description_.rule(), layout_.chunks()[c]);
    convert(layout_.chunks()[c], span.values, from, to + span.first * unit);
  }
}

}  // namespace spillway::execute
