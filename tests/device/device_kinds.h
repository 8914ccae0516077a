// Every compute device that there is here, for tests of what all promise.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/device/cuda.h"
#include "spillway/device/simulated.h"
#include "tests/device/fake_driver.h"

namespace spillway::device {

struct DeviceKind {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
  bool registers = true;
};

inline void PrintTo(const DeviceKind& kind, std::ostream* out) {
  *out << kind.name;
}

/// `cpu`, `simulated`, `cuda` over a fake driver, and each real GPU.
inline std::vector<DeviceKind> device_kinds() {
  std::vector<DeviceKind> out{
      {"cpu", make_cpu},
      {"simulated", [] { return make_simulated({}); }},
      {"simulated_delayed", [] { return make_simulated({.seed = 5}); }},
      {"simulated_slow", [] { return make_simulated({.to_device = 4e8, .from_device = 2e8}); }},
      {"simulated_refusing", [] { return make_simulated({.registers = false, .seed = 6}); }, false},
      {"simulated_pieces", [] { return make_simulated({.piece = 3 * MiB, .seed = 7}); }},
      {"cuda_fake", [] { return make_fake_cuda(); }},
      {"cuda_pieces", [] { return make_cuda({.library = kFakeDriver, .piece = 3 * MiB}); }},
      {"cuda_limited", [] { return limited_cuda(); }, false},
      {"cuda_refusing", [] { return refusing_cuda(); }, false}};
  try {
    const CudaDriver driver;
    for (const auto& gpu : gpus(driver)) {
      out.push_back({text("cuda_", gpu.index), [index = gpu.index] { return make_cuda({.index = index}); }});
    }
  } catch (const Error&) {  // there is none here
  }
  return out;
}

}  // namespace spillway::device
