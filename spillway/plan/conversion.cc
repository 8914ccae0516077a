#include "spillway/plan/conversion.h"

namespace spillway::plan {
namespace {

bool converts(const Description& description, const state::Block& block) {
  return description.widens() || block.packed;
}

}  // namespace

bool converts(const Description& description, const state::Layout& layout, const Pass& pass) {
  return !traits(pass.kind).of_rows && converts(description, layout.blocks()[pass.block]);
}

state::ComputeType converted_type(const Description& description, const state::Chunk& chunk) noexcept {
  return type_of(chunk.form, description.computes());
}

Bytes converted_bytes(const Description& description, const state::Chunk& chunk) noexcept {
  return chunk.values() * state::field_bytes(converted_type(description, chunk)).weight;
}

Bytes converted_bytes(const Description& description, const state::Layout& layout, const Pass& pass) {
  if (!converts(description, layout, pass)) return 0;
  const auto chunks = chunks_of(layout, pass);
  Bytes out = 0;
  for (auto c = chunks.first; c < chunks.end(); ++c) out += converted_bytes(description, layout.chunks()[c]);
  return out;
}

std::uint64_t weight_first(const Description& description, const state::Layout& layout, std::size_t tensor) {
  const auto& it = layout.tensors().at(tensor);
  const auto& block = layout.blocks()[it.block];
  if (!converts(description, block)) return it.first;
  Bytes before = 0;
  for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
    const auto& chunk = layout.chunks()[c];
    for (const auto& span : layout.spans(c)) {
      if (span.tensor != tensor) continue;
      before += span.chunk_first * state::field_bytes(converted_type(description, chunk)).weight;
      return before / state::field_bytes(description.computes()).weight;
    }
    before += converted_bytes(description, chunk);
  }
  return it.first;
}

}  // namespace spillway::plan
