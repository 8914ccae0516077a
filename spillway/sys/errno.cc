#include "spillway/sys/errno.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "spillway/base/bytes.h"

namespace spillway::sys {
namespace {

ErrorCode code_of(int errno_value) {
  switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case EEXIST:
    case ENAMETOOLONG:
    case ELOOP:
      return ErrorCode::bad_input;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ErrorCode::does_not_fit;
    default:
      return ErrorCode::io;
  }
}

/// The bytes that RLIMIT_FSIZE leaves to a file of this process; empty where it sets no limit.
std::string describe_file_limit() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return text(". Files of this process may have ", human(limit.rlim_cur), " (ulimit -f): raise the limit");
}

}  // namespace

std::string describe_errno(int errno_value) {
  const char* words = strerrordesc_np(errno_value);
  const char* name = strerrorname_np(errno_value);
  if (words == nullptr || name == nullptr) return text("errno ", errno_value);
  return text(words, " (", name, ")");
}

void throw_errno(int errno_value, std::string_view action, const std::filesystem::path& path, std::string_view advice) {
  std::string message = text("cannot ", action, " ", path.string(), ": ", describe_errno(errno_value));
  if (errno_value == EFBIG) message += describe_file_limit();
  if (!advice.empty()) message += text(". ", advice);
  throw Error(code_of(errno_value), std::move(message), errno_value, path.string());
}

}  // namespace spillway::sys
