// Counts of a run while it works, as values whose fields have the names of docs/reference and of metrics.jsonl
// (telemetry_fields.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/plan/summary.h"

namespace spillway::execute {

/// Work of a storage path so far.
struct PathCounters {
  Bytes read = 0, written = 0;
  double busy_seconds = 0;                     ///< with anything in flight
  double read_seconds = 0, write_seconds = 0;  ///< with anything of that direction in flight
  std::uint64_t syncs = 0;                     ///< flushes
  double sync_seconds = 0;
  bool direct = false;                                    ///< O_DIRECT
  std::string notice;                                     ///< for people; "": none
  std::string volume;                                     ///< its file
  std::optional<double> read_rate = {}, write_rate = {};  ///< bytes per second, as striping has them
  std::optional<Bytes> used = {};                         ///< of the volume
};

/// Passes of one kind on a device.
struct PassCounters {
  std::uint64_t passes = 0;
  double seconds = 0;
};

struct DeviceCounters {
  std::string name;
  Bytes memory = 0;                                 ///< of the arena there
  Bytes to_device = 0, from_device = 0;             ///< copied
  std::string notice;                               ///< for people; "": none
  std::map<std::string, PassCounters> passes = {};  ///< by kind
};

/// Updates of one tier of host memory.
struct UpdateCounters {
  std::uint64_t elements = 0;
  double seconds = 0;
};

/// Bytes to and from other processes.
struct NetworkCounters {
  Bytes sent = 0, received = 0;
  plan::NetworkBytes between_machines = {};  ///< of these
};

/// Pieces of a block's tensors that are apart, summed over the steps so far (asked_pieces.h).
struct PieceCounters {
  std::string block;
  std::uint64_t asked = 0;     ///< pieces that a step asked for
  std::uint64_t resident = 0;  ///< of those, pieces whose weights stay in memory
  std::uint64_t planned = 0;   ///< of those, pieces whose weights would stay there if none had swapped places
  std::uint64_t swaps = 0;     ///< pieces that took a nearer place
  std::uint64_t pieces = 0;    ///< pieces of the tensors that a step asked for
};

/// A path that was retired.
struct Outage {
  std::string path, reason;
};

struct Counters {
  Bytes arena_bytes = 0;
  std::map<std::string, double> stall_seconds = {};                 ///< by what was waited for
  std::map<std::string, std::map<std::string, double>> waits = {};  ///< the same by tier, then cause
  std::map<std::string, UpdateCounters> updates = {};               ///< by tier of host memory
  std::map<std::string, PathCounters> paths = {};                   ///< by path
  std::optional<DeviceCounters> device = {};                        ///< none: passes compute in host memory
  std::optional<NetworkCounters> network = {};                      ///< none: a world of one
  std::optional<std::vector<Outage>> outages = {};                  ///< none: nothing lies on paths
  std::optional<std::vector<PieceCounters>> pieces = {};            ///< by block; none: no tensor has pieces apart
};

/// Bytes of the arena on a tier of host memory.
struct TierMemory {
  Bytes planned = 0;
  Bytes there = 0;      ///< as the kernel says page by page
  Bytes in_memory = 0;  ///< of those, what the kernel counts in this process's memory
};

/// Buffers of one class that are planned for later tiers.
struct BuffersAside {
  std::uint64_t buffers = 0;
  std::uint64_t elsewhere = 0;  ///< of them
};

struct MemoryPlaces {
  std::map<std::string, TierMemory> nodes = {};    ///< by tier of host memory
  std::uint64_t chunks = 0;                        ///< of the model
  std::vector<std::uint64_t> elsewhere = {};       ///< chunks that lie on another tier than planned
  std::map<std::string, BuffersAside> aside = {};  ///< by class
};

}  // namespace spillway::execute
