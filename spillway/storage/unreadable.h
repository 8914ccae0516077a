// A read of one of several copies: bytes that the drive cannot give are a damaged copy, not the end of the run.
#pragma once

#include <string>

#include "spillway/base/error.h"

namespace spillway::storage {

/// Calls `read`, which throws Error(io) when the drive or its file system cannot give the bytes; says why it could not,
/// in the error's words, and nothing when it could. What was read into means nothing then. Other errors go through.
template <class Read>
[[nodiscard]] std::string why_unreadable(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io) throw;
    return error.what();
  }
  return {};
}

}  // namespace spillway::storage
