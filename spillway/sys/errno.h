// Turns an errno captured at a failing call into words and into an Error.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "spillway/base/error.h"

namespace spillway::sys {

/// "Input/output error (EIO)"; "errno 4711" for one without a name. Thread safe.
[[nodiscard]] std::string describe_errno(int errno_value);

/// Throws the Error for a failed call on `path`: "cannot DO PATH: WORDS. ADVICE". What the caller named wrongly
/// (missing, not a directory, no permission, read-only) is bad_input, a full file system does_not_fit, anything else
/// io.
[[noreturn]] void throw_errno(int errno_value, std::string_view action, const std::filesystem::path& path,
                              std::string_view advice = {});

}  // namespace spillway::sys
