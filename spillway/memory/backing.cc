#include "spillway/memory/backing.h"

#include <algorithm>

#include "spillway/memory/pages.h"
#include "spillway/sys/mapping.h"

namespace spillway::memory {
namespace {

Held held_on(std::span<const std::byte> range, int node) {
  Held out;
  for (const auto& part : where(range)) out.there += part.node == node ? part.bytes : 0;
  out.in_memory = out.there;
  return out;
}

/// `files`: what this process has mapped of files.
Held held_in(std::span<const std::byte> range, const std::vector<sys::FileRange>& files) {
  Held out;
  for (const auto& file : files) {
    const auto* begin = std::max(range.data(), file.begin);
    const auto* end = std::min(range.data() + range.size(), file.end);
    if (begin >= end) continue;
    const auto bytes = static_cast<Bytes>(end - begin);
    out.there += bytes;
    out.in_memory += std::min(bytes, file.in_memory);
  }
  return out;
}

}  // namespace

std::vector<Held> held(std::span<const std::byte> arena, const std::vector<ArenaPart>& parts) {
  const auto in_files = [](const ArenaPart& part) { return part.backing.kind == Backing::Kind::file; };
  const auto files = std::ranges::any_of(parts, in_files) ? sys::file_ranges() : std::vector<sys::FileRange>{};
  std::vector<Held> out;
  for (const auto& part : parts) {
    const auto range = arena.subspan(part.begin, part.bytes());
    if (part.backing.kind == Backing::Kind::node) {
      out.push_back(held_on(range, part.backing.node));
    } else if (in_files(part)) {
      out.push_back(held_in(range, files));
    } else {
      out.push_back({.there = range.size(), .in_memory = range.size()});
    }
  }
  return out;
}

}  // namespace spillway::memory
