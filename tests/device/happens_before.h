// The happens-before order of a device's operations, in vector clocks (Mattern 1989) with the epochs of FastTrack
// (Flanagan and Freund 2009).
//
// Two operations that touch the same bytes, one of them to write, need an order that the program made: within a stream,
// by an event, or by a wait of the host. Without one they are a race, whatever the timing was. All threads of the host
// are one participant: a driver does not see what passes between them, and the thread sanitizer does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace spillway::device::fake {

/// Bytes that an operation touches. They are read where `writes` is false.
struct Range {
  const void* at = nullptr;
  std::size_t bytes = 0;  ///< 0: none
  bool writes = false;
};

/// The host, or a stream.
using Participant = std::size_t;

/// The operations of each participant that are known to have ended.
class VectorClock {
 public:
  [[nodiscard]] std::uint64_t count(Participant of) const { return of < counts_.size() ? counts_[of] : 0; }
  void join(const VectorClock& other);
  void advance(Participant of);

 private:
  std::vector<std::uint64_t> counts_;  ///< by participant; missing ones are 0
};

/// To be used by one thread at a time. Operations are told in the order in which the host gives them to their streams.
class HappensBefore {
 public:
  static constexpr Participant kHost = 0;

  [[nodiscard]] Participant add_stream();
  /// Whether the host has waited for all of its operations.
  [[nodiscard]] bool is_idle(Participant stream) const {
    return clocks_[kHost].count(stream) >= clocks_[stream].count(stream);
  }

  /// Operations of a stream so far.
  [[nodiscard]] std::uint64_t count(Participant stream) const { return clocks_[stream].count(stream); }
  /// Whether the host has waited for the `count`th of them.
  [[nodiscard]] bool is_awaited(Participant stream, std::uint64_t count) const {
    return clocks_[kHost].count(stream) >= count;
  }

  /// An operation that the host gives to a stream, or does itself (kHost). Returns the race with an earlier one in
  /// words; empty: there is none.
  [[nodiscard]] std::string run(Participant by, const std::string& name, std::span<const Range> ranges);

  /// The clock of an event that is recorded now: of all that the stream has been given.
  [[nodiscard]] VectorClock record(Participant stream);
  /// What comes after this in the stream, or on the host, comes after what the event stands for.
  void wait(Participant by, const VectorClock& event) { clocks_[by].join(event); }

  /// Whether an operation whose name begins so is among those that the event stands for and the host has not waited
  /// for.
  [[nodiscard]] bool stands_for(const VectorClock& event, const std::string& name);

  /// Forgets all operations.
  void forget() { history_.clear(); }
  /// Accesses that a later operation may race with.
  [[nodiscard]] std::size_t size() const { return history_.size(); }

 private:
  struct Access {
    Range range;
    Participant by = kHost;
    std::uint64_t count = 0;  ///< of its operation, among those of the participant
    std::string name;         ///< of its operation

    [[nodiscard]] bool is_before(const VectorClock& clock) const { return clock.count(by) >= count; }
  };

  void drop_ended();
  [[nodiscard]] const Access* find_race(const Range& range, const VectorClock& clock) const;
  void add(Access access);

  std::vector<VectorClock> clocks_ = std::vector<VectorClock>(1);  ///< by participant
  std::vector<Access> history_;
};

}  // namespace spillway::device::fake
