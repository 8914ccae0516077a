// What is mounted where.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "spillway/sys/device_id.h"

namespace spillway::sys {

struct Mount {
  DeviceId device;
  std::filesystem::path point;
  std::string type;    ///< "ext4", "nfs4", "fuse.sshfs"
  std::string source;  ///< "/dev/sda1", "server:/export"
};

/// Every mount of this process's name space, in the order of mounting; none where /proc is not mounted. `root` is ""
/// but for tests.
[[nodiscard]] std::vector<Mount> mounts(const std::string& root = "");

/// The mount that an existing path lies on.
[[nodiscard]] std::optional<Mount> mount_of(const std::filesystem::path& path, const std::string& root = "");

/// Whether what is mounted lies on another machine, as far as type and source say.
[[nodiscard]] bool is_remote(const Mount& mount);

}  // namespace spillway::sys
