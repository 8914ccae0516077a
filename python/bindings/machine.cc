// Facts about this machine and this process.
#include "module.h"
#include "spillway/sys/process.h"

namespace nb = nanobind;

void bind_machine(nb::module_& module) {
  module.def(
      "dram_available", [] { return spillway::sys::dram_facts().available; },
      "Bytes of DRAM this process can take now without swapping or being killed (control groups included).");
  module.def(
      "dram_total", [] { return spillway::sys::dram_facts().total; },
      "Bytes of DRAM of the machine, or the control group's limit where that is less.");
  module.def(
      "resident", [] { return spillway::sys::process_memory().resident; }, "Resident bytes of this process now.");
  module.def(
      "peak_resident", [] { return spillway::sys::process_memory().peak_resident; },
      "Highest resident bytes of this process since its start or the last reset_peak_resident().");
  module.def(
      "reset_peak_resident", [] { return spillway::sys::reset_peak_resident(); },
      "Starts peak_resident() anew from the present; False where the kernel refuses.");
}
