#include "spillway/execute/tiers.h"

#include <cstring>

namespace spillway::execute {

Tiers::Tiers(const plan::Plan& plan, const state::Layout& layout, const state::UpdateRule& rule, std::byte* arena,
             Store* store)
    : plan_(plan), layout_(layout), rule_(rule), arena_(arena), store_(store) {}

std::byte* Tiers::resident_weight(std::size_t chunk) const {
  if (!plan_.residency.weight[chunk]) return nullptr;
  const auto& schedule = plan_.schedule;
  return arena_ + schedule.buffers[schedule.update_weight[chunk]].offset + schedule.weight_at[chunk];
}

std::byte* Tiers::resident_state(std::size_t chunk) const {
  const auto& schedule = plan_.schedule;
  if (schedule.resident_state[chunk] == plan::kNone) return nullptr;
  return arena_ + schedule.buffers[schedule.update_state[chunk]].offset;
}

void Tiers::load(std::size_t chunk, std::byte* weight, std::byte* state) {
  const auto& it = layout_.chunks()[chunk];
  const auto get = [&](Field field, std::byte* to, const std::byte* resident, Bytes bytes) {
    if (to == nullptr || bytes == 0) return;
    if (resident != nullptr) {
      std::memcpy(to, resident, bytes);
    } else {
      store_->run(
          {.direction = storage::Direction::read, .field = field, .subject = chunk, .memory = to, .bytes = bytes});
    }
  };
  get(Field::weight, weight, resident_weight(chunk), weight_bytes(rule_, it));
  get(Field::state, state, resident_state(chunk), state_bytes(rule_, it));
}

void Tiers::store(std::size_t chunk, const std::byte* weight, const std::byte* state) {
  const auto& it = layout_.chunks()[chunk];
  stored_ = stored_ || weight != nullptr;
  const auto put = [&](Field field, const std::byte* from, std::byte* resident, Bytes bytes) {
    if (from == nullptr || bytes == 0) return;
    if (resident != nullptr) {
      std::memcpy(resident, from, bytes);
    } else {
      auto* memory = const_cast<std::byte*>(from);  // a write only reads it
      store_->run(
          {.direction = storage::Direction::write, .field = field, .subject = chunk, .memory = memory, .bytes = bytes});
    }
  };
  put(Field::weight, weight, resident_weight(chunk), weight_bytes(rule_, it));
  put(Field::state, state, resident_state(chunk), state_bytes(rule_, it));
}

}  // namespace spillway::execute
