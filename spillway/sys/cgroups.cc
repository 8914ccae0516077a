#include "spillway/sys/cgroups.h"

#include <fstream>

#include "spillway/base/error.h"

namespace spillway::sys {
namespace {

void add_upwards(std::vector<Cgroup>& out, const std::filesystem::path& mount, std::filesystem::path group,
                 bool unified) {
  for (; group.has_relative_path(); group = group.parent_path()) {
    out.push_back({mount / group.relative_path(), unified});
  }
  out.push_back({mount, unified});
}

}  // namespace

std::vector<Cgroup> cgroups(const std::string& root, std::string_view controller,
                            std::initializer_list<const char*> mounts) {
  std::vector<Cgroup> out;
  const std::filesystem::path mounted = root + "/sys/fs/cgroup";
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto controllers = text(",", line.substr(first + 1, second - first - 1), ",");
    const std::filesystem::path group = line.substr(second + 1);
    if (controllers == ",,") {
      add_upwards(out, mounted, group, true);
      add_upwards(out, mounted / "unified", group, true);
    } else if (controllers.find(text(",", controller, ",")) != std::string::npos) {
      for (const char* mount : mounts) add_upwards(out, mounted / mount, group, false);
    }
  }
  return out;
}

}  // namespace spillway::sys
