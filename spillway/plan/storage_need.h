// How many bytes a plan keeps on the storage paths. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "spillway/plan/description.h"
#include "spillway/plan/schedule.h"

namespace spillway::plan {

/// Updates between two snapshots of a chunk whose state is resident; its gradients since then are its redo log.
inline constexpr std::uint32_t kSnapshotPeriod = 8;

/// Bytes by class; each object is rounded up to whole pieces.
struct StorageNeed {
  std::map<std::string, Bytes> breakdown;
  Bytes spare = 0;        ///< part of class "durability": snapshots that wait for a flush
  Bytes least_spare = 0;  ///< fewer bytes of these mean more flushes, down to so many

  [[nodiscard]] Bytes bytes() const noexcept {
    Bytes sum = 0;
    for (const auto& [name, bytes] : breakdown) sum += bytes;
    return sum;
  }
};

/// Bytes that `placement` and the `activations` of a schedule put on the paths. `durability` and `checkpoints` (pinned
/// at once) add class "durability", without records and superblocks.
[[nodiscard]] StorageNeed storage_need(const Description& description, const state::Layout& layout,
                                       const Placement& placement, const std::vector<Activation>& activations,
                                       Durability durability, std::uint32_t checkpoints);

}  // namespace spillway::plan
