#include "spillway/plan/arena_layout.h"

#include <algorithm>

namespace spillway::plan {
namespace {

constexpr Bytes kAlignment = 4096;

bool contains(const Buffer& buffer, std::uint32_t position) {
  if (buffer.whole) return true;
  if (buffer.first <= buffer.last) return buffer.first <= position && position <= buffer.last;
  return position >= buffer.first || position <= buffer.last;
}

bool together(const Buffer& a, const Buffer& b) {
  return a.whole || b.whole || contains(a, b.first) || contains(b, a.first);
}

/// Lowest offset, `floor` at least, where `buffer` meets none of those `placed` (in the order of their offsets) that
/// live when it does.
Bytes lowest_gap(const std::vector<Buffer>& buffers, const std::vector<Index>& placed, const Buffer& buffer,
                 Bytes floor) {
  const auto bytes = round_up(buffer.bytes, kAlignment);
  Bytes at = floor;
  for (const auto index : placed) {
    const auto& other = buffers[index];
    if (other.offset >= at + bytes) break;
    const auto end = other.offset + round_up(other.bytes, kAlignment);
    if (end > at && together(buffer, other)) at = end;
  }
  return at;
}

}  // namespace

Bytes lay_out(Schedule& schedule, Tier tier) {
  auto& buffers = schedule.buffers;
  std::vector<Index> order;
  for (Index b = 0; b < buffers.size(); ++b) {
    if (buffers[b].tier == tier) order.push_back(b);
  }
  // Whole-step buffers go to the bottom; then the large, then the early.
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
    if (buffers[a].whole != buffers[b].whole) return buffers[a].whole;
    if (buffers[a].bytes != buffers[b].bytes) return buffers[a].bytes > buffers[b].bytes;
    return buffers[a].first < buffers[b].first;
  });
  Bytes floor = 0;  // end of the whole-step buffers
  Bytes total = 0;
  std::vector<Index> placed;
  for (const auto index : order) {
    auto& buffer = buffers[index];
    const auto bytes = round_up(buffer.bytes, kAlignment);
    if (buffer.whole) {
      buffer.offset = floor;
      floor += bytes;
    } else {
      buffer.offset = lowest_gap(buffers, placed, buffer, floor);
      const auto after = [&](Bytes offset, Index other) { return offset < buffers[other].offset; };
      placed.insert(std::upper_bound(placed.begin(), placed.end(), buffer.offset, after), index);
    }
    total = std::max(total, buffer.offset + bytes);
  }
  return total;
}

Bytes resident_bytes(const Schedule& schedule, Tier tier) {
  Bytes end = 0;
  for (const auto& buffer : schedule.buffers) {
    if (buffer.whole && buffer.tier == tier) end = std::max(end, buffer.offset + round_up(buffer.bytes, kAlignment));
  }
  return end;
}

Bytes live_peak(const Schedule& schedule, Tier tier) {
  std::vector<std::int64_t> change(schedule.positions + 2, 0);
  std::int64_t whole = 0;
  const auto add = [&](std::uint32_t first, std::uint32_t last, std::int64_t bytes) {
    change[first] += bytes;
    change[last + 1] -= bytes;
  };
  for (const auto& buffer : schedule.buffers) {
    if (buffer.tier != tier) continue;
    const auto bytes = static_cast<std::int64_t>(round_up(buffer.bytes, kAlignment));
    if (buffer.whole) {
      whole += bytes;
    } else if (buffer.first <= buffer.last) {
      add(buffer.first, buffer.last, bytes);
    } else {
      add(buffer.first, schedule.positions, bytes);
      add(0, buffer.last, bytes);
    }
  }
  std::int64_t now = whole, peak = whole;
  for (std::uint32_t p = 0; p < schedule.positions; ++p) {
    now += change[p];
    peak = std::max(peak, now);
  }
  return static_cast<Bytes>(peak);
}

namespace {

struct OpenRange {
  Bytes begin = 0, end = 0;
};

/// Removes [begin, end) from `open`; true when anything was removed.
bool cover(std::vector<OpenRange>& open, Bytes begin, Bytes end) {
  bool hit = false;
  std::vector<OpenRange> rest;
  for (const auto& range : open) {
    if (range.end <= begin || end <= range.begin) {
      rest.push_back(range);
      continue;
    }
    hit = true;
    if (range.begin < begin) rest.push_back({range.begin, begin});
    if (end < range.end) rest.push_back({end, range.end});
  }
  open = std::move(rest);
  return hit;
}

struct Former {
  std::uint32_t age = 0;  // positions since it was let go
  Index buffer = kNone;
  bool previous = false;
};

}  // namespace

void add_reuse_dependencies(Schedule& schedule) {
  const auto& buffers = schedule.buffers;
  std::vector<Former> formers;
  for (Index i = 0; i < buffers.size(); ++i) {
    const auto& buffer = buffers[i];
    if (buffer.whole) continue;
    formers.clear();
    const auto end = buffer.offset + buffer.bytes;
    for (Index j = 0; j < buffers.size(); ++j) {
      const auto& other = buffers[j];
      // A buffer follows itself, too: its former user is its own last use, one step ago.
      if (other.tier != buffer.tier || other.whole || other.offset >= end ||
          buffer.offset >= other.offset + other.bytes)
        continue;
      const bool previous = other.last >= buffer.first;
      const auto age = previous ? buffer.first + schedule.positions - other.last : buffer.first - other.last;
      formers.push_back({age, j, previous});
    }
    std::sort(formers.begin(), formers.end(), [](const Former& a, const Former& b) { return a.age < b.age; });
    std::vector<OpenRange> open{{buffer.offset, end}};
    for (const auto& former : formers) {
      const auto& other = buffers[former.buffer];
      if (!cover(open, other.offset, other.offset + other.bytes)) continue;
      for (const auto task : buffer.first_tasks) {
        for (const auto last : other.last_tasks) schedule.tasks[task].needs.push_back({last, former.previous});
        // Those of the instance before `former`'s; of two before, everything has ended.
        if (former.previous) continue;
        for (const auto earlier : other.earlier_tasks) schedule.tasks[task].needs.push_back({earlier, true});
      }
      if (open.empty()) break;
    }
  }
}

}  // namespace spillway::plan
