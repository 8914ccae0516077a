// Which device bytes go to: the same for every process of the machine.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <string>

namespace spillway::sys {

/// The kernel's number of a device. Two partitions of a drive are one device. A file system without a drive of its own
/// (network, memory, several drives) has a number that the kernel made up, with major 0.
struct DeviceId {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;

  auto operator<=>(const DeviceId&) const = default;
};

/// "259:0"
[[nodiscard]] std::string to_string(DeviceId device);

/// The id of a block device itself, or, for anything else, of what its file system lies on. Throws Error(bad_input) for
/// a missing path.
[[nodiscard]] DeviceId device_of(const std::filesystem::path& path);

/// The drive that a partition lies on; a device that is no partition is its own. `root` is "" but for tests.
[[nodiscard]] DeviceId whole_device(DeviceId device, const std::string& root = "");

}  // namespace spillway::sys
