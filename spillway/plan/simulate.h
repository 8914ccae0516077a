// Plays a schedule against a profile: when every task of a steady step starts and ends.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "spillway/plan/schedule.h"

namespace spillway::plan {

struct TaskTimes {
  double start = 0, end = 0;  ///< seconds from the start of the simulated step; negative: in the step before
};

struct Simulation {
  double step_seconds = 0;       ///< from one steady step's end to the next; with snapshots in turn, their mean
  double compute_seconds = 0;    ///< passes alone, on free cores
  double transfer_seconds = 0;   ///< all bytes of the paths at their mixed rate
  double update_seconds = 0;     ///< all updates on one core; with several NUMA nodes, by the one that ends last
  ByLane<double> seconds;        ///< all tasks of a link, of updates on a device, of the network; of others nothing
  double stall_seconds = 0;      ///< compute waiting
  std::string bottleneck;        ///< "compute", the name of the storage, or a lane's: "update", "to_device", ...
  std::vector<TaskTimes> tasks;  ///< of the last simulated step, by Schedule::tasks

  /// Seconds of the slowest among drives, links and updates on a device.
  [[nodiscard]] double moving_seconds() const noexcept {
    return std::max(
        {transfer_seconds, seconds[Lane::to_device], seconds[Lane::from_device], seconds[Lane::device_update]});
  }
};

/// Event-driven, fluid: a lane serves its earliest deadline among the tasks that are ready; reads and writes share the
/// paths (`read` or `write` alone, `mixed` in halves together; the sum of them all), and an urgent one waits for what
/// the paths were handed before (path_queue.h); compute, updates and the path's thread share the cores. Each memory
/// node has an update lane, all of which run at once; weights that are read in place from another node than the first
/// bound the passes that read them. Updates on a device and passes there share it in halves. Beside a GPU, copies
/// take bandwidth of their node's memory from updates that are as fast as that memory, and so do updates of other nodes
/// that read gradients there. Simulates `steps` >= 2
/// steady steps from a cold start, or fewer where the rest would take as long. Pure and deterministic.
[[nodiscard]] Simulation simulate(const Schedule& schedule, const Description& description, const state::Layout& layout,
                                  const Rates& rates, unsigned steps = 8, const std::string& storage_name = "path:0");

}  // namespace spillway::plan
