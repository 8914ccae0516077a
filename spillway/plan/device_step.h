// A step on a machine with devices, as tasks of a flow: Spillway's own method, layer-major, updates behind the next
// forward pass, every lane by deadline, both directions of every link at once.
//
// Devices that do the same are played as one with the sum of their rates; a layer's weights cross the links once, each
// device fetching its share and gathering the others' from its peers (through the links when there are none).
#pragma once

#include <map>
#include <string>

#include "spillway/plan/device_placement.h"

namespace spillway::plan {

struct DeviceStep {
  double seconds = 0;                   ///< from one steady step's end to the next
  std::map<std::string, double> alone;  ///< seconds of a step that each resource works, without the others
  double read = 0, written = 0;         ///< bytes of a step over the drives
  double up = 0, down = 0;              ///< bytes of a step over the links, all devices
};

/// Pure. Plays four steps from a cold start and measures the last.
[[nodiscard]] DeviceStep play_step(const Hardware& hardware, const ModelSizes& model, const DeviceWork& work,
                                   const DevicePlacement& placement);

}  // namespace spillway::plan
