#include "spillway/execute/tiers.h"

#include <cstring>

namespace spillway::execute {

Extents reserve_extents(const plan::Plan& plan, const plan::Description& description, const state::Layout& layout,
                        storage::Path* path) {
  const auto bytes = state::field_bytes(description.type);
  const auto chunks = layout.chunks().size();
  Extents out{std::vector<Bytes>(chunks), std::vector<Bytes>(chunks), std::vector<Bytes>(chunks),
              std::vector<Bytes>(plan.residency.activation.size())};
  if (path == nullptr) return out;
  for (std::size_t c = 0; c < chunks; ++c) {
    const auto elements = layout.chunks()[c].elements;
    if (!plan.residency.weight[c]) out.weight[c] = path->allocate(elements * bytes.weight);
    if (!plan.residency.state[c]) out.state[c] = path->allocate(elements * bytes.state);
    if (!plan.residency.grad[c] && plan::has_dense_grad(description, layout, static_cast<plan::Index>(c))) {
      out.grad[c] = path->allocate(elements * bytes.grad);
    }
  }
  const auto border = description.tokens * description.hidden * bytes.grad;
  for (std::size_t i = 0; i < out.activation.size(); ++i) {
    if (!plan.residency.activation[i] && border > 0) out.activation[i] = path->allocate(border);
  }
  return out;
}

Tiers::Tiers(const plan::Plan& plan, const state::Layout& layout, state::ComputeType type, const Extents& extents,
             std::byte* arena, storage::Path* path)
    : plan_(plan), layout_(layout), bytes_(state::field_bytes(type)), extents_(extents), arena_(arena), path_(path) {}

std::byte* Tiers::resident_weight(std::size_t chunk) const {
  if (!plan_.residency.weight[chunk]) return nullptr;
  const auto& schedule = plan_.schedule;
  return arena_ + schedule.buffers[schedule.update_weight[chunk]].offset + schedule.weight_at[chunk];
}

std::byte* Tiers::resident_state(std::size_t chunk) const {
  if (!plan_.residency.state[chunk]) return nullptr;
  const auto& schedule = plan_.schedule;
  return arena_ + schedule.buffers[schedule.update_state[chunk]].offset;
}

void Tiers::move(storage::Direction direction, std::byte* memory, Bytes bytes, Bytes offset) {
  path_->run({.direction = direction, .memory = memory, .bytes = bytes, .offset = offset});
}

void Tiers::load(std::size_t chunk, std::byte* weight, std::byte* state) {
  const auto elements = layout_.chunks()[chunk].elements;
  const auto get = [&](std::byte* to, const std::byte* resident, Bytes bytes, Bytes offset) {
    if (to == nullptr) return;
    if (resident != nullptr) {
      std::memcpy(to, resident, bytes);
    } else {
      move(storage::Direction::read, to, bytes, offset);
    }
  };
  get(weight, resident_weight(chunk), elements * bytes_.weight, extents_.weight[chunk]);
  get(state, resident_state(chunk), elements * bytes_.state, extents_.state[chunk]);
}

void Tiers::store(std::size_t chunk, const std::byte* weight, const std::byte* state) {
  const auto elements = layout_.chunks()[chunk].elements;
  const auto put = [&](const std::byte* from, std::byte* resident, Bytes bytes, Bytes offset) {
    if (from == nullptr) return;
    if (resident != nullptr) {
      std::memcpy(resident, from, bytes);
    } else {
      // A write only reads this memory.
      move(storage::Direction::write, const_cast<std::byte*>(from), bytes, offset);
    }
  };
  put(weight, resident_weight(chunk), elements * bytes_.weight, extents_.weight[chunk]);
  put(state, resident_state(chunk), elements * bytes_.state, extents_.state[chunk]);
}

}  // namespace spillway::execute
