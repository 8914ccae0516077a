#include "spillway/plan/coalesced.h"

namespace spillway::plan {

std::vector<Coalesced> coalesce(Range chunks, Bytes join, const ChunkBytes& bytes, const Separate& separate) {
  const auto apart = [&](Index c) { return separate && separate(c); };
  std::vector<Coalesced> out;
  Bytes at = 0;
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    if (out.empty() || out.back().bytes >= join || apart(c)) out.push_back({{c, 0}, at, 0});
    ++out.back().chunks.count;
    out.back().bytes += bytes(c);
    at += bytes(c);
  }
  if (out.size() < 2 || out.back().bytes >= join || apart(out.back().chunks.first)) return out;
  const auto rest = out.back();
  out.pop_back();
  out.back().chunks.count += rest.chunks.count;
  out.back().bytes += rest.bytes;
  return out;
}

std::vector<SnapshotGroup> snapshot_groups(const state::Layout& layout, const state::UpdateRule& rule,
                                           const Residency& residency, Bytes join) {
  const auto weight = [&](Index c) { return state::weight_bytes(rule, layout.chunks()[c]); };
  const auto state = [&](Index c) { return state::state_bytes(rule, layout.chunks()[c]); };
  std::vector<SnapshotGroup> out;
  const auto add = [&](Range living) {
    for (const auto& it : coalesce(living, join, weight)) out.push_back({it.chunks, coalesce(it.chunks, join, state)});
  };
  for (const auto& block : layout.blocks()) {
    const Range learning{static_cast<Index>(block.first_chunk), static_cast<Index>(block.learning_chunks)};
    if (block.role == state::BlockRole::layer) {
      if (learning.count > 0 && residency[learning.first].device_resident()) add(learning);
      continue;
    }
    for (auto c = learning.first; c < learning.end(); ++c) {  // slices have buffers of their own
      if (residency[c].device_resident()) add({c, 1});
    }
  }
  return out;
}

}  // namespace spillway::plan
