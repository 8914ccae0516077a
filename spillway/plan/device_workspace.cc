#include "spillway/plan/device_workspace.h"

#include <algorithm>

#include "spillway/state/rule.h"

namespace spillway::plan {

std::uint64_t projector_floats(const state::Subspace& subspace) noexcept {
  if (subspace.rank == 0) return 0;
  const auto fields = state::pair_fields(subspace);
  return fields.p_values + fields.q_values;
}

DeviceWorkspace device_workspace(const state::Layout& layout, bool tied_head, std::uint64_t tokens) {
  DeviceWorkspace out;
  for (const auto& tensor : layout.tensors()) {
    out.squares += ceil_div(tensor.core(), kSquaresTile);
    out.projectors += projector_floats(tensor.subspace);
  }
  for (const auto& block : layout.blocks()) {
    if (block.role == state::BlockRole::layer) continue;
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

}  // namespace spillway::plan
