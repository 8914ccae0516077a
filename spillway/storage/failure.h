// The Errors that a piece can end with: each names the content, the volume, the place, and what to do.
#pragma once

#include <exception>
#include <filesystem>
#include <string_view>

#include "spillway/storage/path.h"

namespace spillway::storage {

/// The piece that an error is about.
struct Subject {
  const std::filesystem::path& volume;
  std::string_view what;  ///< Transfer::what
  Direction direction;
  Bytes offset;  ///< of the piece, in the file
  Bytes bytes;   ///< of the piece
};

/// The error, io, of a file system that could not say whether a name is taken.
[[nodiscard]] std::exception_ptr unanswered(const std::filesystem::path& path, int errno_value);
/// The error, io, of a volume that could not be flushed.
[[nodiscard]] std::exception_ptr unflushed(const std::filesystem::path& volume, int errno_value);

/// The error, io, of a piece that the operating system failed.
[[nodiscard]] std::exception_ptr system_failure(const Subject& place, int errno_value);
/// The error, io, of a piece that moved no byte, or stopped making progress.
[[nodiscard]] std::exception_ptr stalled(const Subject& place, Bytes moved);
/// The error, corrupt, of a piece whose bytes as read are not those that were written.
[[nodiscard]] std::exception_ptr corrupt(const Subject& place);
/// The error, internal, of a piece that was not written, or with another length (`written`).
[[nodiscard]] std::exception_ptr never_written(const Subject& place, Bytes written);

}  // namespace spillway::storage
