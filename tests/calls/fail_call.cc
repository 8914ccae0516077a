// The tracer for processes that load it: Python's tests, and by them the installed command.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "tests/calls/tracer.h"

/// From its return on the process is a child of what it was, and watched. `under`: directories between colons; `number`
/// and `error` as in Fault; `resources`, `rings`: as in Watch.
extern "C" void spillway_fail_call(const char* under, unsigned long long number, int error, int resources, int rings,
                                   unsigned patience, const char* report, int keep_log) {
  spillway::calls::Watch watch;
  std::istringstream directories(under);
  for (std::string directory; std::getline(directories, directory, ':');) watch.under.push_back(directory);
  watch.resources = resources != 0;
  watch.rings = rings != 0;
  watch.patience = patience;
  spillway::calls::watch_me(watch, {number, error}, report, keep_log != 0);
}
