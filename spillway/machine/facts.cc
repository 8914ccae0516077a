#include "spillway/machine/facts.h"

#include <hwloc.h>

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/sys/cpu.h"
#include "spillway/sys/process.h"

namespace spillway::machine {
namespace {

class Topology {
 public:
  Topology() {
    if (hwloc_topology_init(&topology_) != 0) refuse();
    if (hwloc_topology_load(topology_) != 0) {
      hwloc_topology_destroy(topology_);
      refuse();
    }
  }
  ~Topology() { hwloc_topology_destroy(topology_); }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  /// Processors that are ours by affinity; all that are allowed when affinity cannot be asked.
  [[nodiscard]] unsigned processors() const {
    hwloc_bitmap_t ours = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topology_));
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    if (hwloc_get_cpubind(topology_, bound, HWLOC_CPUBIND_THREAD) == 0) hwloc_bitmap_and(ours, ours, bound);
    const int count = hwloc_bitmap_weight(ours);
    hwloc_bitmap_free(bound);
    hwloc_bitmap_free(ours);
    if (count < 1) refuse();
    return static_cast<unsigned>(count);
  }

 private:
  [[noreturn]] static void refuse() {
    throw Error(ErrorCode::unsupported, "hwloc cannot read this machine's topology (is /sys mounted?)");
  }

  hwloc_topology_t topology_{};
};

}  // namespace

Profile facts() {
  Profile out;
  out.cores = Topology().processors();
  if (const auto quota = sys::cpu_quota()) out.cores = std::clamp(static_cast<unsigned>(*quota), 1U, out.cores);
  const sys::DramFacts dram = sys::dram_facts();
  out.dram_total = dram.total;
  out.dram_available = dram.available;
  return out;
}

}  // namespace spillway::machine
