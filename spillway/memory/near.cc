#include "spillway/memory/near.h"

#include <exception>

#include "spillway/sys/nodes.h"
#include "spillway/sys/numa.h"
#include "spillway/sys/thread.h"

namespace spillway::memory {

bool stay_near(int node) noexcept {
  try {
    const auto cpus = sys::nearest_cpus(sys::nodes(), node);
    return !cpus.empty() && sys::set_thread_affinity(cpus);
  } catch (const std::exception&) {  // it is slower, not wrong
    return false;
  }
}

void give_way() noexcept {
  sys::lower_priority();
}

}  // namespace spillway::memory
