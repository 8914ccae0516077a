// Bytes that nobody has written.
#pragma once

#include <cstddef>
#include <span>

namespace spillway {

/// Whether all bytes are zero.
[[nodiscard]] bool blank(std::span<const std::byte> bytes) noexcept;

}  // namespace spillway
