// Updates that may begin on a lane, the earliest deadline first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "spillway/plan/schedule.h"

namespace spillway::execute {

/// A task of an instance of the schedule.
struct Start {
  std::uint64_t instance = 0;
  plan::Index task = plan::kNone;
};

/// Tasks of idle priority run only while the caller waits.
class UpdateQueue {
 public:
  struct Entry {
    std::uint64_t deadline = 0;
    Start start;
    bool early = false;  ///< an early update
    bool operator<(const Entry& other) const { return deadline > other.deadline; }
  };

  /// So many tasks at once need no allocation.
  void reserve(std::size_t tasks);
  void push(const Entry& entry, bool is_idle_priority);
  [[nodiscard]] bool has_task(bool caller_waits) const noexcept {
    return !ready_.empty() || (caller_waits && has_idle_priority());
  }
  [[nodiscard]] bool has_idle_priority() const noexcept { return !when_idle_.empty(); }
  /// The task that begins next; there is one.
  [[nodiscard]] Start pop(bool caller_waits);
  /// Takes an early update, if there is one.
  [[nodiscard]] std::optional<Start> take_early();

 private:
  std::vector<Entry> ready_, when_idle_;  ///< heaps
};

}  // namespace spillway::execute
