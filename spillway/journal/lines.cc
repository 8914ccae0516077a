#include "spillway/journal/lines.h"

#include <algorithm>
#include <limits>

namespace spillway::journal {
namespace {

/// What is found of the shards of a line. Where one of them has a step, every shard is on the line: a commit comes
/// after the vote with which all are open. So a shard of another line is nothing that a line with steps has left.
struct Standing {
  std::int64_t step = std::numeric_limits<std::int64_t>::max();  ///< the smallest of those that are found
  bool any = false;                                              ///< one of them has a step
  std::vector<std::uint32_t> missing = {};                       ///< those of which nothing is found
  [[nodiscard]] bool whole() const { return missing.empty() && step != kNoStep; }
};

Standing standing_of(const KeptLine& line, std::span<const FoundShard> found) {
  Standing out;
  for (std::uint32_t shard = 0; shard < line.world; ++shard) {
    bool there = false;
    std::int64_t newest = kNoStep;
    for (const FoundShard& it : found) {
      if (it.world != line.world || it.shard != shard || it.newest.line != line.number) continue;
      there = true;
      newest = std::max(newest, it.newest.step);
    }
    if (!there) out.missing.push_back(shard);
    if (there) out.step = std::min(out.step, newest);
    out.any = out.any || newest != kNoStep;
  }
  return out;
}

WayOn from_line(const KeptLine& line, const Standing& standing, std::uint32_t world) {
  const bool opens = line.world == world;
  return {opens ? WayOn::Kind::open : WayOn::Kind::redeal, line, standing.step};
}

WayOn without(const KeptLine& line, const Standing& standing) {
  return {WayOn::Kind::missing, line, kNoStep, standing.missing};
}

}  // namespace

WayOn way_on(const RunLines& lines, std::span<const FoundShard> found, std::uint32_t world) {
  const Standing now = standing_of(lines.now, found);
  if (!lines.before) {
    if (lines.now.world == world) return {WayOn::Kind::open, lines.now, now.whole() ? now.step : kNoStep};
    if (now.whole()) return from_line(lines.now, now, world);
    if (!now.any || now.step == kNoStep) return {WayOn::Kind::nothing, lines.now};
    return without(lines.now, now);
  }
  if (now.whole() && lines.now.world == world) return from_line(lines.now, now, world);
  // Volumes of the line before go only when the new one is whole: one of the two is, and both have the same step.
  const Standing before = standing_of(*lines.before, found);
  if (before.whole()) return from_line(*lines.before, before, world);
  if (now.whole()) return from_line(lines.now, now, world);
  const bool removing = before.missing.size() > now.missing.size() && now.step != kNoStep;
  return removing ? without(lines.now, now) : without(*lines.before, before);
}

}  // namespace spillway::journal
