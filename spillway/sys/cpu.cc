#include "spillway/sys/cpu.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "spillway/base/error.h"

namespace spillway::sys {
namespace {

using Quota = std::optional<double>;

/// Microseconds of time in every period; "max" and -1 mean no limit.
Quota ratio(double quota, double period) {
  return quota > 0 && period > 0 ? Quota(quota / period) : std::nullopt;
}

Quota version2(const std::filesystem::path& group) {
  std::ifstream file(group / "cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period ? ratio(quota, period) : std::nullopt;
}

Quota version1(const std::filesystem::path& group) {
  std::ifstream quota_file(group / "cpu.cfs_quota_us"), period_file(group / "cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_file >> quota && period_file >> period ? ratio(quota, period) : std::nullopt;
}

/// From the process's group up to the root of the hierarchy. A path that names a group outside this mount (as in a
/// container) finds no files until it reaches the mount's own root.
template <class Read>
void tighten_upwards(Quota& tightest, const std::filesystem::path& mount, std::filesystem::path group, Read read) {
  for (;; group = group.parent_path()) {
    if (const auto here = read(mount / group.relative_path())) tightest = std::min(tightest.value_or(*here), *here);
    if (!group.has_relative_path()) return;
  }
}

}  // namespace

Quota cpu_quota() {
  return cpu_quota_below("");
}

Quota cpu_quota_below(const std::string& root) {
  Quota tightest;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto controllers = text(",", line.substr(first + 1, second - first - 1), ",");
    const std::filesystem::path group = line.substr(second + 1);
    if (controllers == ",,") {
      tighten_upwards(tightest, root + "/sys/fs/cgroup", group, version2);
      tighten_upwards(tightest, root + "/sys/fs/cgroup/unified", group, version2);
    } else if (controllers.find(",cpu,") != std::string::npos) {
      tighten_upwards(tightest, root + "/sys/fs/cgroup/cpu", group, version1);
      tighten_upwards(tightest, root + "/sys/fs/cgroup/cpu,cpuacct", group, version1);
    }
  }
  return tightest;
}

}  // namespace spillway::sys
