// Reservation of a plan on each storage path.
#pragma once

#include <vector>

#include "spillway/plan/description.h"
#include "spillway/plan/storage_need.h"

namespace spillway::plan {

/// Bytes of data by path, as Budget::paths, of which there is at least one: its share by rate, and with several paths
/// half as much again, so that the others can take over from one that slows down; what does not fit so goes to those
/// that are not remote first. `overhead`: what each holds beside
/// its data. Where there is less room than `need` asks, fewer snapshots may wait for a flush, and `need` says so.
/// Throws Error(does_not_fit) when that is not enough.
[[nodiscard]] std::vector<Bytes> reserve(const Budget& budget, const Rates& rates, Durability durability,
                                         Bytes overhead, StorageNeed& need);

}  // namespace spillway::plan
