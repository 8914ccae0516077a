// Parts of a tensor in chunks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "spillway/base/error.h"
#include "spillway/state/layout.h"

namespace spillway::execute {

/// Calls body(span, chunk) for the parts of elements [first, first + count) of a tensor. Throws Error(bad_input) beyond
/// its end.
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

}  // namespace spillway::execute
