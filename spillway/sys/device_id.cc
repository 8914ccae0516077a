#include "spillway/sys/device_id.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <fstream>
#include <system_error>

#include "spillway/sys/errno.h"

namespace spillway::sys {

std::string to_string(DeviceId device) {
  return text(device.major, ":", device.minor);
}

DeviceId device_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw_errno(errno, "examine", path);
  const dev_t device = S_ISBLK(status.st_mode) ? status.st_rdev : status.st_dev;
  return whole_device({::major(device), ::minor(device)});
}

DeviceId whole_device(DeviceId device, const std::string& root) {
  std::error_code none;
  const auto entry = std::filesystem::canonical(text(root, "/sys/dev/block/", to_string(device)), none);
  if (none || !std::filesystem::exists(entry / "partition", none)) return device;
  std::ifstream file(entry.parent_path() / "dev");
  DeviceId whole;
  char colon = 0;
  if (file >> whole.major >> colon >> whole.minor && colon == ':') return whole;
  return device;
}

}  // namespace spillway::sys
