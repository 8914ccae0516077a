// The one error family of Spillway.
//
// An Error says what was asked, what is there and what to change. Lanes and completion handlers never throw: they
// store the first Error with its task, and the next wait throws it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace spillway {

/// What kind of failure it is; the command line maps it to an exit code.
enum class ErrorCode {
  bad_input,     ///< an argument, a file or a configuration is wrong: exit 2
  does_not_fit,  ///< a budget cannot hold what was asked: exit 3
  io,            ///< the operating system refused or failed: exit 1, or 2 when `errno_value` blames the input
  corrupt,       ///< bytes that were read are not the bytes that were written: exit 1
  unsupported,   ///< this machine or build lacks what was asked for: exit 2
  internal,      ///< a fault of our own: exit 1
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, int errno_value = 0, std::string path = {})
      : std::runtime_error(message), code_(code), errno_value_(errno_value), path_(std::move(path)) {}

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  /// The errno captured at the failing call; 0 when none.
  [[nodiscard]] int errno_value() const noexcept { return errno_value_; }
  /// The file or directory concerned; empty when none.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  ErrorCode code_;
  int errno_value_;
  std::string path_;
};

/// Joins its arguments with operator<< into one message.
template <class... Parts>
[[nodiscard]] std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace spillway
