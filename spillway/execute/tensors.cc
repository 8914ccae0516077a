#include "spillway/execute/tensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "spillway/execute/tensor_parts.h"
#include "spillway/network/exchange.h"
#include "spillway/state/finite.h"
#include "spillway/state/source.h"

namespace spillway::execute {
namespace {

/// Sends the chunks that rank 0 loads while it saves, in its order.
template <class Wanted>
void send_all(const state::ChunkStream& stream, const plan::Description& description, bool weights, Wanted&& wanted) {
  check_scratch(stream);
  auto* scratch = stream.scratch.data();
  for (const auto& chunk : stream.layout.chunks()) {
    if (!description.is_sent(chunk) || !wanted(chunk)) continue;
    weights ? stream.store.load(chunk.id, scratch, nullptr) : stream.store.load(chunk.id, nullptr, scratch);
  }
}

}  // namespace

void share_chunk(const plan::Description& description, const state::Layout& layout, network::Port* network,
                 std::size_t chunk, std::byte* weight, std::byte* state) {
  const auto& it = layout.chunks()[chunk];
  if (network == nullptr || !description.is_sent(it)) return;
  const auto& world = description.world;
  const auto owner = description.owner(layout, it);
  const auto rule = description.rule();
  std::vector<network::Message> messages;
  for (std::size_t peer = 0; peer < world.size; ++peer) {
    if (peer == world.rank || (owner != world.rank && peer != owner)) continue;
    for (const auto& [at, bytes] :
         {std::pair(weight, weight_bytes(rule, it)), std::pair(state, state_bytes(rule, it))}) {
      if (at == nullptr || bytes == 0) continue;
      messages.push_back({.peer = peer, .sends = owner == world.rank, .bytes = {at, bytes}});
    }
  }
  if (!messages.empty()) network::exchange(*network, std::move(messages));
}

void save_weights(const state::ChunkStream& stream, const plan::Description& description,
                  const std::filesystem::path& directory, const state::SaveOptions& options) {
  if (description.world.rank == 0) return state::save_weights(stream, directory, options);
  send_all(stream, description, true, [&](const state::Chunk& chunk) {
    return std::ranges::any_of(stream.layout.spans(chunk.id), [&](const state::Span& span) {
      return !state::stored_name(options.names, stream.layout.tensors()[span.tensor].spec.name).empty();
    });
  });
}

void save_state(const state::ChunkStream& stream, const plan::Description& description,
                const std::filesystem::path& directory) {
  if (description.world.rank == 0) return state::save_state(stream, directory);
  send_all(stream, description, false, [](const state::Chunk& chunk) { return has_state(chunk.training); });
}

Tensors::Tensors(const plan::Description& description, const state::Layout& layout, Tiers& tiers,
                 std::span<std::byte> scratch, bool filled, network::Port* network)
    : description_(description),
      layout_(layout),
      tiers_(tiers),
      scratch_(scratch),
      filled_(layout.chunks().size(), filled),
      network_(network),
      edited_(layout.chunks().size()) {
  for (std::size_t c = 0; c < filled_.size(); ++c) filled_[c] = filled_[c] || !has(c);
}

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
  return state::chunk_fields(description_.weight_dtype, it, at.weight, at.state);
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

state::ChunkStore& Tensors::chunks() {
  put_back();
  return *this;
}

void Tensors::measure(std::size_t tensor, std::uint64_t first, std::span<const float> values) {
  auto& mean = measured_[tensor];
  if (first == 0) mean = {};
  if (first != mean.values()) {
    throw Error(ErrorCode::bad_input,
                text("tensor ", layout_.tensors().at(tensor).spec.name, " is measured from value ", first, " on after ",
                     mean.values(), " values; measure it in order"));
  }
  mean.add(values.data(), values.size());
}

/// The mean of the tensor's scales; 0 where its form needs none.
float Tensors::scale_mean(std::size_t tensor, std::span<const float> values) {
  const auto& it = layout_.tensors().at(tensor);
  if (!needs_scale_mean(it.spec.form)) return 0;
  if (values.size() == it.elements) measure(tensor, 0, values);
  const auto measured = measured_[tensor].values();
  if (measured == it.elements) return measured_[tensor].mean();
  throw Error(ErrorCode::bad_input, text("tensor ", it.spec.name, " is stored after ", measured, " of ", it.elements,
                                         " values were measured; measure all of it first"));
}

void Tensors::store(std::size_t tensor, std::uint64_t first, std::span<const float> values) {
  const auto& spec = layout_.tensors().at(tensor).spec;
  if (const auto at = state::find_not_finite(values, state::type_of(spec.form, description_.weight_dtype))) {
    state::refuse_not_finite({spec.name, spec.shape, first + *at, values[*at]}, {});
  }
  const auto mean = scale_mean(tensor, values);
  for_parts(layout_, tensor, first, values.size(), [&](const state::Span& span, std::size_t chunk) {
    if (!has(chunk)) return;
    auto fields = edit(chunk);
    fields.scale_mean = mean;
    changed_ = true;
    state::to_chunk(values.subspan(span.tensor_first - first, span.elements), fields, span.chunk_first);
  });
}

void Tensors::fetch(std::size_t tensor, std::uint64_t first, std::span<float> values) {
  for_parts(layout_, tensor, first, values.size(), [&](const state::Span& span, std::size_t chunk) {
    if (network_ != nullptr) put_back();
    const auto at = memory(chunk);
    const auto fields =
        has(chunk) ? edit(chunk)
                   : state::chunk_fields(description_.weight_dtype, layout_.chunks()[chunk], at.weight, at.state);
    share(chunk, at.weight, at.state);
    state::from_chunk(fields, span.chunk_first, values.subspan(span.tensor_first - first, span.elements));
  });
}

// ---- whole states; they use the scratch memory themselves

state::ChunkStream Tensors::stream() {
  return {layout_, description_.rule(), *this, scratch_};
}

void Tensors::load(std::size_t chunk, std::byte* weight, std::byte* state) {
  if (has(chunk)) tiers_.load(chunk, weight, state);
  share(chunk, weight, state);
}

void Tensors::share(std::size_t chunk, std::byte* weight, std::byte* state) {
  share_chunk(description_, layout_, network_, chunk, weight, state);
}

void Tensors::store(std::size_t chunk, const std::byte* weight, const std::byte* state) {
  if (!has(chunk)) return;
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
  execute::save_weights(stream(), description_, directory, options);
}

void Tensors::save_state(const std::filesystem::path& directory) {
  settle();
  execute::save_state(stream(), description_, directory);
}

state::StateFormat Tensors::load_state(const std::filesystem::path& directory, const std::filesystem::path& weights,
                                       const std::map<std::string, std::string>& names) {
  put_back();  // what is not loaded stays
  return state::load_state(stream(), directory, weights, names);
}

}  // namespace spillway::execute
