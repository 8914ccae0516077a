#include "spillway/plan/device_workspace.h"

#include <algorithm>

#include "spillway/plan/description.h"

namespace spillway::plan {

namespace {

/// Sums are of one backward pass at a time; records stay until the step ends.
void add_estimates(const state::Layout& layout, unsigned sums, DeviceWorkspace& out) {
  for (const auto& block : layout.blocks()) {
    std::uint64_t seen = 0, squares = 0;
    for (auto t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
      const auto& it = layout.tensors()[t].reduced;
      if (!it.any()) continue;
      seen += it.rows;
      squares += ceil_div(it.rows, kSquaresTile);
      out.records += it.by->record / sizeof(double);
    }
    out.seen = std::max(out.seen, sums * seen);
    out.seen_squares = std::max(out.seen_squares, squares);
  }
}

}  // namespace

DeviceWorkspace device_workspace(const state::Layout& layout, bool tied_head, std::uint64_t tokens, bool by_chunk,
                                 unsigned sums) {
  DeviceWorkspace out;
  for (const auto& chunk : layout.chunks()) {
    if (!by_chunk || chunk.reduced.any()) continue;
    for (const auto& span : layout.spans(chunk.id)) out.squares += ceil_div(span.elements, kSquaresTile);
  }
  for (const auto& tensor : layout.tensors()) {
    if (!by_chunk || tensor.reduced.any()) out.squares += ceil_div(tensor.gradient_elements(), kSquaresTile);
    out.auxiliary += tensor.reduced.device_bytes() / sizeof(float);
  }
  add_estimates(layout, sums, out);
  for (const auto& block : layout.blocks()) {
    if (!traits(block.role).is_table) continue;
    for (auto c = block.first_chunk; c < block.first_chunk + block.chunks; ++c) {
      const auto& slice = layout.chunks()[c];
      out.squares += ceil_div(slice.used, kSquaresTile);
      if (!tied_head) continue;
      out.parts += ceil_div(slice.used, kSquaresTile) + 1;
      out.gathered = std::max(out.gathered, std::min(slice.used, tokens * block.columns));
    }
    if (!tied_head) continue;
    out.rows = std::min(block.rows, tokens);
    out.parts += 2 * out.rows;  // each cuts a run in two, and may cut its tiles anew
  }
  out.squares += out.parts;
  return out;
}

DeviceWorkspace device_workspace(const Description& description, const state::Layout& layout) {
  return device_workspace(layout, description.tied_head, description.all_tokens(), description.virtual_ranks > 1,
                          description.sample_sums());
}

}  // namespace spillway::plan
