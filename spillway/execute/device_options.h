// These options choose the compute device of a run.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "spillway/device/cuda.h"
#include "spillway/device/device.h"
#include "spillway/device/simulated.h"

namespace spillway::execute {

struct DeviceOptions {
  std::string name = "simulated";  ///< matters when the plan has a device; "simulated" or "cuda:N"
  void* stream = nullptr;          ///< cuda: the caller's CUstream, which passes are issued to; null: the default one
  device::SimulatedOptions simulated = {};
  device::CudaOptions cuda = {};  ///< without the index, which `name` says: driver and kernels, for tests
  /// For tests of the order of events: passes are issued to a stream of the simulated device's own, which this is told
  /// and which the caller then gives its work to (Simulated::call). Empty: the caller computes itself.
  std::function<void(device::Simulated&, device::Stream)> queue = {};
};

/// A device that was opened, and the stream that passes are issued to.
struct OpenDevice {
  std::unique_ptr<device::Device> device;
  device::Stream stream = 0;
};

/// Number of the GPU that `name` asks for; none: it asks for none.
[[nodiscard]] std::optional<int> gpu_of(const std::string& name);

/// Throws Error(bad_input) for a name that is none, Error(unsupported) for a GPU that this build has no kernels for,
/// and what opening the device throws.
[[nodiscard]] OpenDevice open_device(const DeviceOptions& options);

}  // namespace spillway::execute
