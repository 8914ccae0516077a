#include "spillway/plan/conversion.h"

#include <algorithm>

#include "spillway/base/error.h"

namespace spillway::plan {
namespace {

bool converts(const Description& description, const state::Layout& layout, const state::Block& block) {
  return description.widens() || needs_copy(layout, block);
}

bool has_pieces(const state::Layout& layout, const state::Span& span) {
  return layout.tensors()[span.tensor].spec.pieces > 0;
}

Bytes bytes_at_once(const Description& description, const state::Layout& layout, const state::Chunk& chunk) {
  Bytes out = 0;
  for (const auto& it : ranges_at_once(layout, chunk)) out += it.count;
  return out * state::field_bytes(converted_type(description, chunk)).weight;
}

/// Bytes of the place for pieces: of the tensor that has the largest ones.
Bytes piece_bytes(const Description& description, const state::Layout& layout, const state::Block& block) {
  std::uint64_t most = 0;
  for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
    const auto& it = layout.tensors()[t];
    most = std::max(most, it.piece() * std::min(kPiecesAtOnce, it.spec.pieces));
  }
  return most * state::field_bytes(description.computes()).weight;
}

}  // namespace

bool needs_copy(const state::Layout& layout, const state::Block& block) {
  const auto first = layout.tensors().begin() + static_cast<std::ptrdiff_t>(block.first_tensor);
  const auto has_pieces = [](const state::Tensor& it) { return it.spec.pieces > 0; };
  return block.packed || std::any_of(first, first + static_cast<std::ptrdiff_t>(block.tensors), has_pieces);
}

bool converts(const Description& description, const state::Layout& layout, const Pass& pass) {
  return !traits(pass.kind).of_rows && converts(description, layout, layout.blocks()[pass.block]);
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
  auto out = piece_bytes(description, layout, layout.blocks()[pass.block]);
  for (auto c = chunks.first; c < chunks.end(); ++c) out += bytes_at_once(description, layout, layout.chunks()[c]);
  return out;
}

std::vector<ValueRange> ranges_at_once(const state::Layout& layout, const state::Chunk& chunk) {
  const auto& spans = layout.spans(chunk.id);
  if (std::ranges::none_of(spans, [&](const auto& it) { return has_pieces(layout, it); })) return {{0, chunk.values()}};
  std::vector<ValueRange> out;
  for (const auto& it : spans) {
    if (!has_pieces(layout, it)) out.push_back({it.chunk_first, round_up(it.elements, chunk.packing.values)});
  }
  return out;
}

std::vector<PieceSpan> piece_spans(const state::Layout& layout, std::size_t tensor, std::uint64_t first,
                                   std::uint64_t count) {
  const auto& it = layout.tensors().at(tensor);
  if (count > kPiecesAtOnce || first + count > it.spec.pieces) {
    throw Error(ErrorCode::bad_input,
                text("tensor ", it.spec.name, " has ", it.spec.pieces, " pieces, of which ", kPiecesAtOnce,
                     " are converted at once; ", count, " are asked for from ", first, " on"));
  }
  const auto begin = first * it.piece(), end = begin + count * it.piece();
  const auto& block = layout.blocks()[it.block];
  std::vector<PieceSpan> out;
  for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
    for (const auto& span : layout.spans(c)) {
      const auto from = std::max(begin, span.tensor_first), to = std::min(end, span.tensor_first + span.elements);
      if (span.tensor != tensor || from >= to) continue;
      out.push_back({c, {span.chunk_first + (from - span.tensor_first), to - from}, from - begin});
    }
  }
  return out;
}

std::uint64_t weight_first(const Description& description, const state::Layout& layout, std::size_t tensor) {
  const auto& it = layout.tensors().at(tensor);
  const auto& block = layout.blocks()[it.block];
  if (!converts(description, layout, block)) return it.first;
  const auto unit = state::field_bytes(description.computes()).weight;
  Bytes before = 0;
  for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
    const auto& chunk = layout.chunks()[c];
    const auto element = state::field_bytes(converted_type(description, chunk)).weight;
    for (const auto& range : ranges_at_once(layout, chunk)) {
      for (const auto& span : layout.spans(c)) {
        if (span.tensor != tensor || it.spec.pieces > 0) continue;
        if (span.chunk_first < range.first || span.chunk_first >= range.first + range.count) continue;
        return (before + (span.chunk_first - range.first) * element) / unit;
      }
      before += range.count * element;
    }
  }
  return before / unit;  // behind all: the pieces' place
}

}  // namespace spillway::plan
