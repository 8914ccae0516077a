// How much of the machine's CPUs this process may use, and what caches they have.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "spillway/base/bytes.h"

namespace spillway::sys {

/// CPUs' worth of time that the tightest of the process's cgroups grants (v1 or v2, the group itself and
/// those around it), such as 1.5; none: no group limits it.
[[nodiscard]] std::optional<double> cpu_quota();

/// The quota that is read below `root` ("" is the real machine; tests hand a tree of their own).
[[nodiscard]] std::optional<double> cpu_quota_below(const std::string& root);

/// Bytes of the third-level caches together; 0 where the kernel tells of none. `root` is "" but for tests.
[[nodiscard]] Bytes largest_caches(const std::string& root = "");

/// Takes the bytes out of every cache of every CPU: the next to read them reads memory, as if they had not been
/// used for long. For measuring; on CPUs other than x86-64 and 64-bit ARM nothing happens.
void drop_from_caches(std::span<const std::byte> bytes) noexcept;

}  // namespace spillway::sys
