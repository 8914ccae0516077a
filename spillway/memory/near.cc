#include "spillway/memory/near.h"

#include <algorithm>
#include <exception>
#include <vector>

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

bool stay_off_core(int cpu) noexcept {
  try {
    if (cpu < 0) return false;
    const auto core = sys::core_cpus(static_cast<unsigned>(cpu));
    auto others = sys::thread_affinity();
    std::erase_if(others, [&](unsigned it) { return std::ranges::find(core, it) != core.end(); });
    return !others.empty() && sys::set_thread_affinity(others);
  } catch (const std::exception&) {
    return false;
  }
}

int own_cpu() noexcept {
  return sys::current_cpu();
}

void give_way(int nice) noexcept {
  sys::lower_priority(nice);
}

}  // namespace spillway::memory
