// Waits of passes, as the time in which compute was idle: the caller's waits, or, on a device with its own memory,
// those parts in which the device had nothing to do. The caller runs ahead of a device, so its wait alone costs
// nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "spillway/execute/pass_clock.h"
#include "spillway/execute/waits.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {

class PassWaits {
 public:
  /// The times of a task of an instance; null: the instance never was.
  using Look = std::function<const Times*(std::uint64_t instance, plan::Index task)>;

  /// `schedule` must outlive the object.
  PassWaits(const plan::Schedule& schedule, Look look) : schedule_(schedule), look_(std::move(look)) {}

  /// Begins an instance. The waits of the one before are settled.
  void begin(std::uint64_t instance);
  /// The caller waited for a pass, in seconds of the executor's clock.
  void add(plan::Index pass, double begin, double end) { waits_[pass] = Wait{begin, end}; }
  /// It waited in the pass for what that had asked for.
  void add_asked(plan::Index pass, double begin, double end) { asked_.emplace_back(pass, Wait{begin, end}); }
  /// Adds the waits of the instance to waits() and forgets them. `spans`: when the device ran each pass; empty: there
  /// is no device, or no time of it, and each wait of the caller counts. Else waits count from the end of the pass
  /// before: the caller's, and what the stream then waited, from `ready` to `start`.
  void settle(const std::vector<PassClock::Span>& spans);
  [[nodiscard]] const Waits& waits() const noexcept { return total_; }

 private:
  struct Wait {
    double begin = 0, end = 0;
  };
  void add_part(plan::Index pass, double begin, double end);

  const plan::Schedule& schedule_;
  const Look look_;
  Waits total_;
  std::uint64_t instance_ = 0;
  std::vector<std::optional<Wait>> waits_;           ///< of the caller, by pass
  std::vector<std::pair<plan::Index, Wait>> asked_;  ///< in passes
};

}  // namespace spillway::execute
