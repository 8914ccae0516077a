#include "spillway/machine/facts.h"

#include <algorithm>
#include <thread>

#include "spillway/sys/cpu.h"
#include "spillway/sys/numa.h"
#include "spillway/sys/process.h"

namespace spillway::machine {
namespace {

/// CPUs that are ours by affinity; all where it cannot be asked.
unsigned cpus() {
  const auto ours = static_cast<unsigned>(sys::thread_affinity().size());
  return ours > 0 ? ours : std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace

Profile facts() {
  Profile out;
  out.cores = cpus();
  if (const auto quota = sys::cpu_quota()) out.cores = std::clamp(static_cast<unsigned>(*quota), 1U, out.cores);
  const sys::DramFacts dram = sys::dram_facts();
  out.dram_total = dram.total;
  out.dram_available = dram.available;
  return out;
}

}  // namespace spillway::machine
