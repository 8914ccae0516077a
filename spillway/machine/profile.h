// What was measured of a machine: plain values, no I/O.
#pragma once

#include <string>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::machine {

/// Rates of one storage path through the engine, checksums included. 0 = unknown.
struct PathProfile {
  std::string name = "0";             ///< shown as path:NAME
  double read_bytes_per_second = 0;   ///< reads alone
  double write_bytes_per_second = 0;  ///< writes alone
  double mixed_bytes_per_second = 0;  ///< half reads, half writes at once: the sum of both directions
  double cores_at_full_speed = 0;     ///< processors that the path keeps busy while both directions run

  bool operator==(const PathProfile&) const = default;
};

struct Profile {
  unsigned cores = 0;                     ///< processors this process may run on; 0 = unknown
  Bytes dram_total = 0;                   ///< of the machine, or of the control group where that is less
  Bytes dram_available = 0;               ///< what could be taken when it was measured
  std::vector<PathProfile> paths;         ///< names differ
  double update_elements_per_second = 0;  ///< update on one thread, of the kind that was asked for; 0 = unknown
  double copy_bytes_per_second = 0;       ///< bytes copied from DRAM to DRAM on one thread; 0 = unknown
  double compute_flops_per_second = 0;    ///< of the compute device; 0 = unknown

  bool operator==(const Profile&) const = default;
};

}  // namespace spillway::machine
