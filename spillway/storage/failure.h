// The Errors that a piece can end with: each names the content, the volume, the place, and what to do.
#pragma once

#include <exception>
#include <filesystem>
#include <string_view>

#include "spillway/storage/path.h"

namespace spillway::storage {

/// Which piece it is about.
struct Subject {
  const std::filesystem::path& volume;
  std::string_view what;  ///< Transfer::what
  Direction direction;
  Bytes offset;  ///< of the piece, in the file
  Bytes bytes;   ///< of the piece
};

/// A file system could not say whether a name is taken: io.
[[nodiscard]] std::exception_ptr unanswered(const std::filesystem::path& path, int errno_value);
/// A volume could not be flushed: io.
[[nodiscard]] std::exception_ptr unflushed(const std::filesystem::path& volume, int errno_value);

/// The operating system failed it: io.
[[nodiscard]] std::exception_ptr system_failure(const Subject& place, int errno_value);
/// It moved no byte, or stopped making progress: io.
[[nodiscard]] std::exception_ptr stalled(const Subject& place, Bytes moved);
/// The bytes read are not those written: corrupt.
[[nodiscard]] std::exception_ptr corrupt(const Subject& place);
/// Nothing was written there, or another length (`written`): internal.
[[nodiscard]] std::exception_ptr never_written(const Subject& place, Bytes written);

}  // namespace spillway::storage
