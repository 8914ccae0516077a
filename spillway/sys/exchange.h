// Two names that change what they have.
#pragma once

#include <filesystem>

namespace spillway::sys {

/// Gives each of two names on one file system what the other has, files or directories, at once. False, and nothing has
/// changed, where the file system or the kernel cannot do that.
[[nodiscard]] bool exchange(const std::filesystem::path& one, const std::filesystem::path& other);

}  // namespace spillway::sys
