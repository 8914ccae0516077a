#include "spillway/execute/tensors.h"

#include <cstring>

#include "spillway/execute/tensor_parts.h"

namespace spillway::execute {
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
  return state::chunk_fields(description_.type, it, at.weight, at.state);
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
  filled_[chunk] = true;
}

void Tensors::load_weights(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& names) {
  edited_ = filled_.size();
  const state::SafetensorsReader reader(checkpoint);
  state::load_weights(stream(), reader, names);
}

void Tensors::save_weights(const std::filesystem::path& directory, const state::SaveOptions& options) {
  settle();
  state::save_weights(stream(), directory, options);
}

void Tensors::save_state(const std::filesystem::path& directory) {
  settle();
  state::save_state(stream(), directory);
}

state::StateFormat Tensors::load_state(const std::filesystem::path& directory, const std::filesystem::path& weights,
                                       const std::map<std::string, std::string>& names) {
  put_back();  // what is not loaded stays
  return state::load_state(stream(), directory, weights, names);
}

}  // namespace spillway::execute
