// A block device: what it is, what it holds, and who uses it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "spillway/base/bytes.h"

namespace spillway::sys {

struct BlockDevice {
  Bytes size = 0;
  Bytes logical_block = 0;   ///< what O_DIRECT is aligned to
  Bytes physical_block = 0;  ///< what the drive itself writes at once, as far as it says
  bool read_only = false;
  std::optional<bool> rotational;  ///< none: the kernel does not say
  std::string model;               ///< empty: it does not say
};

[[nodiscard]] bool is_block_device(const std::filesystem::path& path) noexcept;

/// Throws Error(bad_input) when `path` is missing or no block device, or may not be opened.
[[nodiscard]] BlockDevice examine_block_device(const std::filesystem::path& path);

inline constexpr const char* kUnknownContents = "data of an unknown kind";

/// What its bytes say: "an ext4 file system 'data'", "a gpt partition table"; kUnknownContents when there is anything
/// but zeros in its first or last MiB; empty otherwise.
[[nodiscard]] std::string contents_of_device(const std::filesystem::path& path);

/// Why it is not free: "its partition sda1 is mounted at /data", "it is used for swapping"; empty when nobody in this
/// name space is seen to use it or a part of it. `root` is "" but for tests.
[[nodiscard]] std::string use_of_device(const std::filesystem::path& path, const std::string& root = "");

/// Removes every signature and zeroes the first and last MiB. Nobody may use the device but the caller.
void erase_device(const std::filesystem::path& path);

}  // namespace spillway::sys
