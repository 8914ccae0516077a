#include "spillway/plan/coalesced.h"

namespace spillway::plan {

std::vector<Coalesced> coalesce(Range chunks, Bytes coalesce_to, const ChunkBytes& bytes, const Separate& separate) {
  const auto apart = [&](Index c) { return separate && separate(c); };
  std::vector<Coalesced> out;
  Bytes at = 0;
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    if (out.empty() || out.back().bytes >= coalesce_to || apart(c)) out.push_back({{c, 0}, at, 0});
    ++out.back().chunks.count;
    out.back().bytes += bytes(c);
    at += bytes(c);
  }
  if (out.size() < 2 || out.back().bytes >= coalesce_to || apart(out.back().chunks.first)) return out;
  const auto rest = out.back();
  out.pop_back();
  out.back().chunks.count += rest.chunks.count;
  out.back().bytes += rest.bytes;
  return out;
}

namespace {

/// Ranges of neighbours among `chunks` that this process has.
std::vector<Range> own_ranges(const Description& description, const state::Layout& layout, Range chunks) {
  std::vector<Range> out;
  for (auto c = chunks.first; c < chunks.end(); ++c) {
    if (!description.has(layout, layout.chunks()[c])) continue;
    if (out.empty() || out.back().end() != c) out.push_back({c, 0});
    ++out.back().count;
  }
  return out;
}

}  // namespace

std::vector<SnapshotGroup> snapshot_groups(const Description& description, const state::Layout& layout,
                                           const Placement& placement, Bytes coalesce_to) {
  const auto rule = description.rule();
  const auto weight = [&](Index c) { return state::weight_bytes(rule, layout.chunks()[c]); };
  const auto state = [&](Index c) { return state::state_bytes(rule, layout.chunks()[c]); };
  std::vector<SnapshotGroup> out;
  const auto add = [&](Range resident) {
    for (const auto& range : own_ranges(description, layout, resident)) {
      for (const auto& it : coalesce(range, coalesce_to, weight))
        out.push_back({it.chunks, coalesce(it.chunks, coalesce_to, state)});
    }
  };
  for (const auto& block : layout.blocks()) {
    for (const auto& range : pass_ranges(block, block.trainable_chunks)) {  // slices have buffers of their own
      if (placement[range.first].device_resident()) add(range);
    }
  }
  return out;
}

}  // namespace spillway::plan
