#include "spillway/sys/errno.h"

#include <cerrno>
#include <cstring>

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

}  // namespace

std::string describe_errno(int errno_value) {
  const char* words = strerrordesc_np(errno_value);
  const char* name = strerrorname_np(errno_value);
  if (words == nullptr || name == nullptr) return text("errno ", errno_value);
  return text(words, " (", name, ")");
}

void throw_errno(int errno_value, std::string_view action, const std::filesystem::path& path, std::string_view advice) {
  std::string message = text("cannot ", action, " ", path.string(), ": ", describe_errno(errno_value));
  if (!advice.empty()) message += text(". ", advice);
  throw Error(code_of(errno_value), std::move(message), errno_value, path.string());
}

}  // namespace spillway::sys
