// The streams of a device whose copies pass through staging buffers, and the order of their events with all others.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "spillway/device/device.h"
#include "spillway/device/staging.h"
#include "spillway/device/staging_ring.h"

namespace spillway::device {

/// As long as all host memory is registered, every call goes to the device as it is.
class StagedStreams {
 public:
  explicit StagedStreams(Device& device) : device_(device) {}
  ~StagedStreams();
  StagedStreams(const StagedStreams&) = delete;
  StagedStreams& operator=(const StagedStreams&) = delete;

  /// Copies of the stream pass through a ring with a thread of its own where they need staging buffers.
  void add_copy_stream(Stream stream);

  /// As those of the device.
  void copy(Stream stream, const Transfer& transfer, bool registered);
  void record(Event event, Stream stream, const Given& given);
  void wait(Stream stream, Event event);

  /// Whether the last record of an event has ended in its ring; without a ring, true. Throws what failed before it.
  [[nodiscard]] bool has_ended(Event event) const;
  /// Waits until it has.
  void await(Event event) const;
  /// Everything that rings were asked for.
  void await_all() const;

 private:
  using Mark = StagingRing::Mark;
  /// What rings have to do with an event.
  struct Note {
    Mark recorded;            ///< its last record; no ring: the device has it
    std::vector<Mark> waits;  ///< for that record, the last one of each ring
  };

  [[nodiscard]] StagingRing* ring_of(Stream stream) const;  // locked
  [[nodiscard]] StagingRing* make_ring(Stream stream);      // locked
  [[nodiscard]] Mark recorded_in(Event event) const;
  void settle(Event event, const StagingRing* ring);
  void copy_at_once(Stream stream, const Transfer& transfer);

  /// Of a stream that is none of copies alone.
  static constexpr std::size_t kSlots = 2;

  Device& device_;
  std::atomic<bool> any_ring_ = false;
  mutable std::mutex mutex_;  ///< guards what follows
  std::set<Stream> copy_streams_;
  std::map<Stream, std::unique_ptr<StagingRing>> rings_;
  std::map<Stream, std::unique_ptr<Staging>> staging_;
  std::map<Event, Note> notes_;
};

}  // namespace spillway::device
