#include "spillway/plan/arena_layout.h"

#include <algorithm>

namespace spillway::plan {
namespace {

constexpr Bytes kAlignment = 4096;

/// A buffer that does not live at every position, at its place.
struct Placed {
  Bytes begin = 0, end = 0;
  std::uint32_t first = 0, last = 0;

  [[nodiscard]] bool lives_at(std::uint32_t position) const noexcept {
    const bool after = first <= position, before = position <= last;
    return first <= last ? after && before : after || before;
  }
};

/// The placed buffers, in the order of their offsets: all of them, and for every window of positions those that live in
/// it. There are thousands, of which few live at once, and most live shortly.
class PlacedBuffers {
 public:
  explicit PlacedBuffers(std::uint32_t positions) : windows_(positions / kStride + 1) {}

  /// Gives `buffer` the lowest offset, `floor` at least, where it meets none that lives when it does.
  void place(Buffer& buffer, Bytes floor) {
    const auto bytes = round_up(buffer.bytes, kAlignment);
    Placed it{floor, 0, buffer.first, buffer.last};
    const bool within = it.first <= it.last && it.last < (it.first / kStride + 2) * kStride;
    for (const auto& other : within ? windows_[it.first / kStride] : all_) {
      if (other.begin >= it.begin + bytes) break;
      if (other.end > it.begin && (it.lives_at(other.first) || other.lives_at(it.first))) it.begin = other.end;
    }
    it.end = it.begin + bytes;
    buffer.offset = it.begin;
    insert(all_, it);
    for (std::uint32_t window = 0; window < windows_.size(); ++window) {
      const auto begin = window * kStride, end = begin + 2 * kStride;
      const bool meets = it.lives_at(begin) || (begin <= it.first && it.first < end);
      if (meets) insert(windows_[window], it);
    }
  }

 private:
  static constexpr std::uint32_t kStride = 64;  ///< from one window to the next, which overlap in as many

  static void insert(std::vector<Placed>& placed, const Placed& it) {
    placed.insert(std::ranges::upper_bound(placed, it.begin, {}, &Placed::begin), it);
  }

  std::vector<Placed> all_;
  std::vector<std::vector<Placed>> windows_;
};

}  // namespace

Bytes lay_out(Schedule& schedule, TierKind tier) {
  auto& buffers = schedule.buffers;
  std::vector<Index> order;
  for (Index b = 0; b < buffers.size(); ++b) {
    if (buffers[b].tier == tier) order.push_back(b);
  }
  // Whole-step buffers go to the bottom; then those of later tiers; of a tier the large, then the early.
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
    if (buffers[a].whole != buffers[b].whole) return buffers[a].whole;
    if (!buffers[a].whole && buffers[a].node != buffers[b].node) return buffers[a].node > buffers[b].node;
    if (buffers[a].bytes != buffers[b].bytes) return buffers[a].bytes > buffers[b].bytes;
    return buffers[a].first < buffers[b].first;
  });
  Bytes floor = 0;  // end of the whole-step buffers, or of what comes and goes on later tiers
  Bytes total = 0;
  std::uint16_t node = 0;
  PlacedBuffers placed(schedule.positions);
  for (const auto index : order) {
    auto& buffer = buffers[index];
    const auto bytes = round_up(buffer.bytes, kAlignment);
    if (buffer.whole) {
      buffer.offset = floor;
      floor += bytes;
    } else {
      if (buffer.node != node) floor = total;
      node = buffer.node;
      placed.place(buffer, floor);
    }
    total = std::max(total, buffer.offset + bytes);
  }
  return total;
}

Bytes resident_bytes(const Schedule& schedule) {
  Bytes end = 0;
  for (const auto& buffer : schedule.buffers) {
    if (buffer.whole && buffer.on_host()) end = std::max(end, buffer.offset + round_up(buffer.bytes, kAlignment));
  }
  return end;
}

MovingRange moving_range(const Schedule& schedule, std::uint16_t node) {
  MovingRange out;
  for (const auto& buffer : schedule.buffers) {
    if (buffer.whole || !buffer.on_host() || buffer.node != node) continue;
    if (out.end == 0) out.begin = buffer.offset;
    out.begin = std::min(out.begin, buffer.offset);
    out.end = std::max(out.end, buffer.offset + round_up(buffer.bytes, kAlignment));
  }
  return out;
}

std::uint16_t last_node(const Schedule& schedule) {
  std::uint16_t out = 0;
  for (const auto& buffer : schedule.buffers) out = std::max(out, buffer.node);
  return out;
}

Bytes bytes_on(const Schedule& schedule, std::uint16_t node) {
  auto out = moving_range(schedule, node).bytes();
  for (const auto& it : schedule.buffers) {
    if (it.whole && it.on_host() && it.node == node) out += round_up(it.bytes, kAlignment);
  }
  return out;
}

Bytes bytes_moving_later(const Schedule& schedule) {
  Bytes out = 0;
  for (std::uint16_t node = 1; node <= last_node(schedule); ++node) out += moving_range(schedule, node).bytes();
  return out;
}

Bytes live_peak(const Schedule& schedule) {
  std::vector<std::int64_t> change(schedule.positions + 2, 0);
  for (const auto& buffer : schedule.buffers) {
    if (!buffer.on_host()) continue;
    const auto bytes = static_cast<std::int64_t>(round_up(buffer.bytes, kAlignment));
    buffer.each_use(schedule.positions, [&](std::uint32_t first, std::uint32_t last) {
      change[first] += bytes;
      change[last + 1] -= bytes;
    });
  }
  std::int64_t now = 0, peak = 0;
  for (const auto more : change) peak = std::max(peak, now += more);
  return static_cast<Bytes>(peak);
}

namespace {

struct OpenRange {
  Bytes begin = 0, end = 0;
};

/// Removes [begin, end) from `open`; true when anything was removed.
bool cover(std::vector<OpenRange>& open, Bytes begin, Bytes end) {
  const auto meets = [&](const OpenRange& range) { return begin < range.end && range.begin < end; };
  if (std::ranges::none_of(open, meets)) return false;
  std::vector<OpenRange> rest;
  for (const auto& range : open) {
    if (!meets(range)) {
      rest.push_back(range);
      continue;
    }
    if (range.begin < begin) rest.push_back({range.begin, begin});
    if (end < range.end) rest.push_back({end, range.end});
  }
  open = std::move(rest);
  return true;
}

/// Non-whole buffers of a tier, those first that are let go last; of equals the first.
std::vector<Index> by_last_use(const std::vector<Buffer>& buffers, TierKind tier) {
  std::vector<Index> out;
  for (Index i = 0; i < buffers.size(); ++i) {
    if (!buffers[i].whole && buffers[i].tier == tier) out.push_back(i);
  }
  std::ranges::stable_sort(out, std::ranges::greater{}, [&](Index i) { return buffers[i].last; });
  return out;
}

/// Adds what those that fill a buffer wait for: whoever let go of its bytes, which `open` has, before.
class Reuse {
 public:
  Reuse(Schedule& schedule, TierKind tier) : schedule_(schedule), by_last_(by_last_use(schedule.buffers, tier)) {}

  void add() {
    for (const auto buffer : by_last_) add(buffer);
  }

 private:
  /// From the one that was let go just before on; a buffer follows itself, too: its own last use, one step ago.
  void add(Index of) {
    const auto& buffer = schedule_.buffers[of];
    open_.assign(1, {buffer.offset, buffer.offset + buffer.bytes});
    const auto last_use = [&](Index i) { return schedule_.buffers[i].last; };
    const auto before = std::ranges::upper_bound(by_last_, buffer.first, std::ranges::greater{}, last_use);
    for (auto it = before; it != by_last_.end() && !open_.empty(); ++it) follow(buffer, *it, false);
    for (auto it = by_last_.begin(); it != before && !open_.empty(); ++it) follow(buffer, *it, true);
  }

  void follow(const Buffer& buffer, Index former, bool previous) {
    const auto& other = schedule_.buffers[former];
    if (!cover(open_, other.offset, other.offset + other.bytes)) return;
    for (const auto task : buffer.first_tasks) {
      auto& needs = schedule_.tasks[task].needs;
      for (const auto last : other.last_tasks) needs.push_back({last, previous});
      // Buffers of the instance before `former`'s. Every buffer of two instances before has ended.
      if (previous) continue;
      for (const auto earlier : other.earlier_tasks) needs.push_back({earlier, true});
    }
  }

  Schedule& schedule_;
  const std::vector<Index> by_last_;
  std::vector<OpenRange> open_;  ///< bytes of the buffer whose last user is not found yet
};

}  // namespace

void add_reuse_dependencies(Schedule& schedule) {
  for (std::size_t tier = 0; tier < kTiers.size(); ++tier) {
    if (kTiers[tier].in_memory) Reuse(schedule, static_cast<TierKind>(tier)).add();
  }
}

}  // namespace spillway::plan
