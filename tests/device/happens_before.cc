#include "tests/device/happens_before.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace spillway::device::fake {
namespace {

std::uintptr_t begin_of(const Range& range) {
  return reinterpret_cast<std::uintptr_t>(range.at);
}
std::uintptr_t end_of(const Range& range) {
  return begin_of(range) + range.bytes;
}

std::uintptr_t common_bytes(const Range& a, const Range& b) {
  const auto begin = std::max(begin_of(a), begin_of(b)), end = std::min(end_of(a), end_of(b));
  return end > begin ? end - begin : 0;
}

bool contains(const Range& outer, const Range& inner) {
  return begin_of(outer) <= begin_of(inner) && end_of(outer) >= end_of(inner);
}

std::string describe(const std::string& name, Participant by, const Range& range) {
  std::ostringstream out;
  out << name << " (";
  by == HappensBefore::kHost ? out << "host" : out << "stream " << by;
  out << "), which " << (range.writes ? "writes " : "reads ") << range.bytes << " bytes at " << range.at;
  return out.str();
}

}  // namespace

void VectorClock::join(const VectorClock& other) {
  if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size());
  for (Participant i = 0; i < other.counts_.size(); ++i) counts_[i] = std::max(counts_[i], other.counts_[i]);
}

void VectorClock::advance(Participant of) {
  if (counts_.size() <= of) counts_.resize(of + 1);
  ++counts_[of];
}

Participant HappensBefore::add_stream() {
  clocks_.emplace_back();
  return clocks_.size() - 1;
}

/// The host's clock is part of every later operation's.
void HappensBefore::drop_ended() {
  std::erase_if(history_, [&](const Access& it) { return it.is_before(clocks_[kHost]); });
}

const HappensBefore::Access* HappensBefore::find_race(const Range& range, const VectorClock& clock) const {
  const auto it = std::ranges::find_if(history_, [&](const Access& earlier) {
    const bool conflicts = range.writes || earlier.range.writes;
    return conflicts && common_bytes(earlier.range, range) > 0 && !earlier.is_before(clock);
  });
  return it == history_.end() ? nullptr : &*it;
}

std::string HappensBefore::run(Participant by, const std::string& name, std::span<const Range> ranges) {
  drop_ended();
  auto& clock = clocks_[by];
  clock.join(clocks_[kHost]);
  clock.advance(by);
  std::string race;
  for (const auto& range : ranges) {
    const auto* const earlier = find_race(range, clock);
    if (earlier == nullptr) continue;
    race = describe(name, by, range) + ", has no order with " + describe(earlier->name, earlier->by, earlier->range) +
           "; " + std::to_string(common_bytes(range, earlier->range)) + " bytes are in both";
    break;
  }
  for (const auto& range : ranges) add({range, by, clock.count(by), name});
  return race;
}

/// Whoever comes after this access comes after those that it covers.
void HappensBefore::add(Access access) {
  if (access.range.bytes == 0) return;
  std::erase_if(history_, [&](const Access& it) {
    const bool conflicts_with_more = access.range.writes || !it.range.writes;
    return conflicts_with_more && contains(access.range, it.range) && it.is_before(clocks_[access.by]);
  });
  history_.push_back(std::move(access));
}

bool HappensBefore::stands_for(const VectorClock& event, const std::string& name) {
  drop_ended();
  return std::ranges::any_of(history_,
                             [&](const Access& it) { return it.name.starts_with(name) && it.is_before(event); });
}

VectorClock HappensBefore::record(Participant stream) {
  clocks_[stream].join(clocks_[kHost]);
  return clocks_[stream];
}

}  // namespace spillway::device::fake
