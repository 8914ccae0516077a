// Bytes that a step moves.
#pragma once

#include "spillway/plan/schedule.h"

namespace spillway::plan {

/// Bytes of a step over the lanes of paths and links. What has its turn in some steps counts as its mean.
struct Traffic : ByLane<Bytes> {
  [[nodiscard]] Bytes on_link() const noexcept { return (*this)[Lane::to_device] + (*this)[Lane::from_device]; }
  [[nodiscard]] Bytes on_paths() const noexcept { return (*this)[Lane::read] + (*this)[Lane::write]; }
};

[[nodiscard]] Traffic traffic_of(const Schedule& schedule);

}  // namespace spillway::plan
