#include "spillway/execute/conversion.h"

#include "spillway/plan/conversion.h"

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
  const auto rule = description_.rule();
  const auto chunks = plan::chunks_of(layout_, pass);
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    const auto& chunk = layout_.chunks()[c];
    where_.device.run(where_.stream, device::Convert{.from = state::encoding_of(chunk.form, rule.type),
                                                     .to = plan::converted_type(description_, chunk),
                                                     .values = from,
                                                     .out = to,
                                                     .n = chunk.values()});
    from += weight_bytes(rule, chunk);
    to += plan::converted_bytes(description_, chunk);
  }
}

}  // namespace spillway::execute
