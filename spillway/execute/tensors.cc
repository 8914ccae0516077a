#include "spillway/execute/tensors.h"

#include <algorithm>
#include <cstring>

#include "spillway/base/error.h"

namespace spillway::execute {
namespace {

/// Calls body(span, chunk) for the parts of elements [first, first + count) of a tensor.
template <class Body>
void for_parts(const state::Layout& layout, std::size_t tensor, std::uint64_t first, std::uint64_t count,
               const Body& body) {
  const auto& it = layout.tensors().at(tensor);
  if (first + count > it.elements) {
    throw Error(ErrorCode::bad_input,
                text("elements ", first, " to ", first + count, " of ", it.spec.name, ", which has ", it.elements));
  }
  const auto& block = layout.blocks()[it.block];
  for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
    for (auto span : layout.spans(c)) {
      if (span.tensor != tensor) continue;
      const auto begin = std::max(first, span.tensor_first);
      const auto end = std::min(first + count, span.tensor_first + span.elements);
      if (begin >= end) continue;
      span.chunk_first += begin - span.tensor_first;
      span.tensor_first = begin;
      span.elements = end - begin;
      body(span, c);
    }
  }
}

}  // namespace

Tensors::Tensors(const plan::Description& description, const state::Layout& layout, Tiers& tiers,
                 std::span<std::byte> scratch, bool filled)
    : description_(description),
      layout_(layout),
      tiers_(tiers),
      scratch_(scratch),
      filled_(layout.chunks().size(), filled),
      edited_(layout.chunks().size()) {}

Tensors::Memory Tensors::memory(std::size_t chunk) const {
  return {scratch_.data(), scratch_.data() + weight_bytes(description_.rule(), layout_.chunks()[chunk])};
}

/// The chunk in scratch memory; it stays until another one is wanted.
state::ChunkFields Tensors::edit(std::size_t chunk) {
  const auto at = memory(chunk);
  const auto& it = layout_.chunks()[chunk];
  if (edited_ != chunk) {
    put_back();
    if (filled_[chunk]) {
      tiers_.load(chunk, at.weight, at.state);
    } else {
      const auto rule = description_.rule();
      std::memset(at.weight, 0, weight_bytes(rule, it) + state_bytes(rule, it));
    }
    edited_ = chunk;
    changed_ = !filled_[chunk];
  }
  return state::chunk_fields(description_.type, it.elements, at.weight, at.state, it.learning);
}

void Tensors::put_back() {
  if (edited_ == filled_.size()) return;
  const auto at = memory(edited_);
  if (changed_) tiers_.store(edited_, at.weight, at.state);
  filled_[edited_] = true;
  edited_ = filled_.size();
}

void Tensors::settle() {
  put_back();
  for (std::size_t c = 0; c < filled_.size(); ++c) {
    if (filled_[c]) continue;
    edit(c);
    put_back();
  }
}

void Tensors::store(std::size_t tensor, std::uint64_t first, std::span<const float> values) {
  for_parts(layout_, tensor, first, values.size(), [&](const state::Span& span, std::size_t chunk) {
    const auto fields = edit(chunk);
    changed_ = true;
    state::to_chunk(values.subspan(span.tensor_first - first, span.elements), fields, span.chunk_first);
  });
}

void Tensors::fetch(std::size_t tensor, std::uint64_t first, std::span<float> values) {
  for_parts(layout_, tensor, first, values.size(), [&](const state::Span& span, std::size_t chunk) {
    const auto fields = edit(chunk);
    state::from_chunk(fields, span.chunk_first, values.subspan(span.tensor_first - first, span.elements));
  });
}

// ---- whole states; they use the scratch memory themselves

state::ChunkStream Tensors::stream() {
  return {layout_, description_.rule(), *this, scratch_};
}

void Tensors::load(std::size_t chunk, std::byte* weight, std::byte* state) {
  tiers_.load(chunk, weight, state);
}

void Tensors::store(std::size_t chunk, const std::byte* weight, const std::byte* state) {
  tiers_.store(chunk, weight, state);
}

void Tensors::load_weights(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& names) {
  edited_ = filled_.size();
  const state::SafetensorsReader reader(checkpoint);
  state::load_weights(stream(), reader, names);
  filled_.assign(filled_.size(), true);
}

void Tensors::save_weights(const std::filesystem::path& directory, Bytes max_shard) {
  settle();
  state::save_weights(stream(), directory, {.max_shard = max_shard});
}

void Tensors::save_state(const std::filesystem::path& directory) {
  settle();
  state::save_state(stream(), directory);
}

state::StateFormat Tensors::load_state(const std::filesystem::path& directory, const std::filesystem::path& weights) {
  edited_ = filled_.size();
  const auto found = state::load_state(stream(), directory, weights);
  filled_.assign(filled_.size(), true);
  return found;
}

}  // namespace spillway::execute
