// The kernels of the `cuda` device on the host: cuda_kernels.cu itself (cuda_on_host.h), with the grid that was
// launched, and what each touches.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "spillway/device/cuda_threads.h"
#include "tests/device/happens_before.h"

namespace spillway::device::fake {

/// A launch whose arguments are known.
struct Bound {
  std::vector<Range> ranges;  ///< that it touches
  std::function<void(unsigned blocks)> run;
};

struct Kernel {
  std::string name;
  std::function<Bound(const void* arguments)> bound;
};

/// Null: there is none of that name.
const Kernel* find(const std::string& name);

}  // namespace spillway::device::fake
