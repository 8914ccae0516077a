// A profile as JSON: docs/formats/profile.md.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "spillway/machine/profile.h"

namespace spillway::machine {

/// Indented, a newline at the end; `from_json` gives back an equal profile, bit for bit of every rate.
[[nodiscard]] std::string to_json(const Profile& profile);
/// Throws Error(bad_input) that names the key when one is missing, unknown, negative, absurd or of the wrong type.
/// `source` is what messages call the text (a file's name).
[[nodiscard]] Profile from_json(std::string_view text, const std::string& source);

/// Writes under a temporary name and renames. Errors of the file system as spillway::Error.
void save_profile(const Profile& profile, const std::filesystem::path& path);
[[nodiscard]] Profile load_profile(const std::filesystem::path& path);

}  // namespace spillway::machine
