#include "spillway/execute/widening.h"

#include "spillway/execute/element.h"

namespace spillway::execute {

Widening::Widening(const plan::Schedule& schedule, const state::Layout& layout, const state::UpdateRule& rule,
                   Arenas arenas, const Arithmetic& where)
    : schedule_(schedule), layout_(layout), rule_(rule), arenas_(arenas), where_(where) {}

std::byte* Widening::weights(const plan::Visit& visit) const {
  auto* const kept = arenas_.at(schedule_, visit.weights);
  if (schedule_.widened == plan::kNone || kept == nullptr || plan::widened_values(layout_, visit) == 0) return kept;
  auto* const copy = arenas_.at(schedule_, schedule_.widened);
  widen(visit, kept, reinterpret_cast<float*>(copy));
  return copy;
}

void Widening::widen(const plan::Visit& visit, const std::byte* from, float* to) const {
  const auto chunks = plan::chunks_of(layout_, visit);
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    const auto& chunk = layout_.chunks()[c];
    const auto type = element_of(rule_of(rule_, chunk).type);
    where_.device.run(where_.stream,
                      device::Sum{.type = type, .values = from, .sum = to, .n = chunk.values(), .first = true});
    from += weight_bytes(rule_, chunk);
    to += chunk.values();
  }
}

}  // namespace spillway::execute
