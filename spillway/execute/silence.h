// Reasons why a run does not go on: a path or a device that answers nothing, and work that other processes wait for.
#pragma once

#include <cstdint>
#include <string>

#include "spillway/base/bytes.h"

namespace spillway::execute {

/// A path, or a lane of a device with memory of its own.
struct Silence {
  std::string volume;           ///< of a path: the file
  std::string device;           ///< of a lane: the name of its device
  std::uint64_t under_way = 0;  ///< requests that it has not answered
  double silent_seconds = 0;    ///< since its last answer, or since it was first asked; 0 when nothing is under way
  std::string task;             ///< of a lane: what it waits for
  Bytes bytes = 0;              ///< of that task
};

/// Work of this process that others wait for.
struct Delay {
  std::string task;       ///< that they wait for: "backward of layers.7"
  std::string waits_for;  ///< what has to end first: "path:1"
  double seconds = 0;     ///< since they may wait for it
};

}  // namespace spillway::execute
