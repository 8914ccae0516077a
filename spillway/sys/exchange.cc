#include "spillway/sys/exchange.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "spillway/base/error.h"
#include "spillway/sys/errno.h"

namespace spillway::sys {

bool exchange(const std::filesystem::path& one, const std::filesystem::path& other) {
  if (::syscall(SYS_renameat2, AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP || errno == EPERM) return false;
  throw_errno(errno, text("exchange ", one.string(), " with"), other);
}

}  // namespace spillway::sys
