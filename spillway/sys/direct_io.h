// What O_DIRECT asks of addresses and offsets of an open file.
#pragma once

#include <optional>

#include "spillway/base/bytes.h"
#include "spillway/sys/file.h"

namespace spillway::sys {

struct DirectAlignment {
  Bytes memory = 0;  ///< of addresses
  Bytes offset = 0;  ///< of offsets and lengths
};

/// What the kernel says (6.1 and newer, of some file systems); none when it does not. `file` is used with O_DIRECT.
[[nodiscard]] std::optional<DirectAlignment> reported_alignment(const File& file) noexcept;

/// The smallest powers of two, from 512 bytes on, at which a transfer works; none when none up to 64 KiB
/// does. Reads the first 128 KiB of `file`, which it must have.
[[nodiscard]] std::optional<DirectAlignment> tried_alignment(const File& file);

/// Bytes the file system would rather move at once.
[[nodiscard]] Bytes preferred_block(const File& file);

}  // namespace spillway::sys
