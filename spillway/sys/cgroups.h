// The cgroups that this process is in: directories whose files say what it may use.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::sys {

struct Cgroup {
  std::filesystem::path directory;
  bool unified = false;  ///< version 2; its files have other names
};

/// Those that a controller ("memory", "cpu") limits the process by, from its own up to the root of each hierarchy, in
/// both versions. `mounts`: names under /sys/fs/cgroup where version 1 may have it. Some need not exist: a path that
/// names a group outside the mount (as in a container) leads to no files until it reaches the mount's own root. `root`:
/// in place of "/", for tests.
[[nodiscard]] std::vector<Cgroup> cgroups(const std::string& root, std::string_view controller,
                                          std::initializer_list<const char*> mounts);

}  // namespace spillway::sys
