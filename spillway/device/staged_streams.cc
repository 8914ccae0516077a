#include "spillway/device/staged_streams.h"

#include <algorithm>

namespace spillway::device {

/// A ring may wait for another one: no ring goes before all have ended.
StagedStreams::~StagedStreams() {
  for (const auto& [stream, ring] : rings_) ring->end();
}

void StagedStreams::add_copy_stream(Stream stream) {
  const std::lock_guard lock(mutex_);
  copy_streams_.insert(stream);
}

StagingRing* StagedStreams::ring_of(Stream stream) const {
  const auto it = rings_.find(stream);
  return it == rings_.end() ? nullptr : it->second.get();
}

StagingRing* StagedStreams::make_ring(Stream stream) {
  auto& out = rings_[stream];
  if (!out) out = std::make_unique<StagingRing>(device_, stream);
  any_ring_ = true;
  return out.get();
}

/// Behind a copy that passes through a ring the whole stream does.
void StagedStreams::copy(Stream stream, const Transfer& transfer, bool registered) {
  if (!registered || any_ring_) {
    const std::lock_guard lock(mutex_);
    const bool needs_ring = !registered && copy_streams_.contains(stream);
    auto* const ring = needs_ring ? make_ring(stream) : ring_of(stream);
    if (ring != nullptr) return static_cast<void>(ring->copy(transfer, !registered));
  }
  if (!registered) return copy_at_once(stream, transfer);
  device_.issue(stream, transfer.direction, transfer.to, transfer.from, transfer.bytes);
}

void StagedStreams::copy_at_once(Stream stream, const Transfer& transfer) {
  Staging* staging = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& it = staging_[stream];
    if (!it) it = std::make_unique<Staging>(device_, stream, kSlots);
    staging = it.get();
  }
  staging->copy(transfer, 0, [] {});
  while (staging->has_arrivals()) staging->land_first();
}

StagedStreams::Mark StagedStreams::recorded_in(Event event) const {
  if (!any_ring_) return {};
  const std::lock_guard lock(mutex_);
  const auto it = notes_.find(event);
  return it == notes_.end() ? Mark{} : it->second.recorded;
}

/// An event that is about to be recorded: what other rings still do with its last record must not meet the new one.
void StagedStreams::settle(Event event, const StagingRing* ring) {
  std::vector<Mark> marks;
  {
    const std::lock_guard lock(mutex_);
    const auto it = notes_.find(event);
    if (it == notes_.end()) return;
    marks.swap(it->second.waits);
    marks.push_back(it->second.recorded);
  }
  for (const auto& mark : marks) {
    if (mark.ring != nullptr && mark.ring != ring) mark.ring->settle(mark.ticket);
  }
}

void StagedStreams::record(Event event, Stream stream, const Given& given) {
  if (any_ring_) {
    std::unique_lock lock(mutex_);
    auto* const ring = ring_of(stream);
    lock.unlock();
    settle(event, ring);
    lock.lock();
    if (ring != nullptr) {
      notes_[event].recorded = {ring, ring->record(event, given)};
      return;
    }
    notes_.erase(event);
  }
  device_.do_record(event, stream);
  if (given.call != nullptr) given.call(given.context, given.token);
}

/// A stream of copies never waits for a ring itself: it gets one.
void StagedStreams::wait(Stream stream, Event event) {
  if (any_ring_) {
    const std::lock_guard lock(mutex_);
    auto& note = notes_[event];
    const bool needs_ring = note.recorded.ring != nullptr && copy_streams_.contains(stream);
    if (auto* const ring = needs_ring ? make_ring(stream) : ring_of(stream)) {
      const Mark mark{ring, ring->wait(event, note.recorded)};
      std::erase_if(note.waits, [&](const Mark& it) { return it.ring == ring; });
      note.waits.push_back(mark);
      return;
    }
  }
  await(event);
  device_.do_wait(stream, event);
}

bool StagedStreams::has_ended(Event event) const {
  const auto recorded = recorded_in(event);
  return recorded.ring == nullptr || recorded.ring->has_ended(recorded.ticket);
}

void StagedStreams::await(Event event) const {
  const auto recorded = recorded_in(event);
  if (recorded.ring != nullptr) recorded.ring->await(recorded.ticket);
}

void StagedStreams::await_all() const {
  std::vector<StagingRing*> rings;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [stream, ring] : rings_) rings.push_back(ring.get());
  }
  for (auto* const ring : rings) ring->await_all();
}

}  // namespace spillway::device
