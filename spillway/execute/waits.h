// Waits of the caller: seconds by lane and, of transfers, by the path that kept it waiting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "spillway/plan/schedule.h"

namespace spillway::execute {

/// When a task ran, in seconds since the executor was made; 0, 0 = skipped. Of a transfer the start is when it could
/// begin, so its time in a path's queue counts.
struct Times {
  double start = 0, end = 0;
  std::uint32_t path = 0;                   ///< of a read or write: the path whose piece ended last
  Bytes copied = 0;                         ///< of a copy between the host and a device
  double device_start = 0, device_end = 0;  ///< of a pass on the device; 0, 0: not measured
};

/// One serial resource: reads or writes of a path, updates of a node, copies one way.
struct Cause {
  plan::Lane lane = plan::Lane::update;
  std::uint32_t unit = 0;  ///< path, or unit of the update lane
  auto operator<=>(const Cause&) const = default;
};

class Waits {
 public:
  /// The times of a task of this instance, or, `previous`, of the one before; null: there was none.
  using Look = std::function<const Times*(plan::Index task, bool previous)>;

  /// The caller waited for `pass` from `begin` to `end`. The wait is divided among what held it up: back from its end,
  /// whatever ended last of what a task needed has the time since it could begin, and then what that needed in turn.
  void add(const plan::Schedule& schedule, plan::Index pass, double begin, double end, const Look& look);

  [[nodiscard]] const std::map<Cause, double>& seconds() const noexcept { return seconds_; }
  /// Seconds by the lane's name; "read", "update" and "write" are always there.
  [[nodiscard]] std::map<std::string, double> list_by_lane() const;
  [[nodiscard]] double sum() const;

 private:
  std::map<Cause, double> seconds_;
};

}  // namespace spillway::execute
