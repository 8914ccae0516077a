// What a step moves.
#pragma once

#include "spillway/plan/schedule.h"

namespace spillway::plan {

/// Bytes of a step over the paths and over the link of a device. What has its turn in some steps counts as its mean.
struct Traffic {
  Bytes read = 0, written = 0, to_device = 0, from_device = 0;

  [[nodiscard]] Bytes on_paths() const noexcept { return read + written; }
};

[[nodiscard]] Traffic traffic_of(const Schedule& schedule);

}  // namespace spillway::plan
