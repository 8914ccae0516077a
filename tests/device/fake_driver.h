// The fake driver (fake_cuda.cc), and how to change what it does.
#pragma once

#include <cstdlib>
#include <string>

#include "spillway/device/cuda.h"

namespace spillway::device {

inline const std::string kFakeDriver = SPILLWAY_FAKE_CUDA;

/// Sets a variable of the environment for a scope.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Setting() { ::unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

/// With kernels, whatever this build has: the driver knows them by name and runs them on the host.
inline std::unique_ptr<Device> make_fake_cuda() {
  static constexpr std::byte kSome[1] = {};
  return make_cuda({.library = kFakeDriver, .kernels = {.machine_code = kSome}});
}

/// With pieces of 3 MiB, of which the driver registers three.
inline std::unique_ptr<Device> limited_cuda() {
  ::setenv("FAKE_CUDA_REGISTERS_KIB", "10000", 1);
  return make_cuda({.library = kFakeDriver, .piece = 3 * MiB});
}

/// As the fixture registers its memory right after.
inline std::unique_ptr<Device> refusing_cuda() {
  ::setenv("FAKE_CUDA_REGISTERS", "0", 1);
  return make_fake_cuda();
}

}  // namespace spillway::device
