#include "spillway/sys/lock_taker.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>

namespace spillway::sys {
namespace {

/// The process that took a file's lock by flock(), as the kernel tells: "4: FLOCK ADVISORY WRITE 812 fe:00:2278456 0
/// EOF".
std::optional<pid_t> taker_of(dev_t device, ino_t inode) {
  std::array<char, 32> name;
  std::snprintf(name.data(), name.size(), "%02x:%02x:%llu", major(device), minor(device),
                static_cast<unsigned long long>(inode));
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, manner, access, file;
    pid_t process = 0;
    if (words >> number >> kind >> manner >> access >> process >> file && kind == "FLOCK" && file == name.data()) {
      return process;
    }
  }
  return std::nullopt;
}

/// Whether nothing runs of it any more, though its parent may not have asked for its status.
bool has_ended(pid_t process) {
  if (process <= 0) return false;
  std::ifstream in("/proc/" + std::to_string(process) + "/stat");
  const std::string stat((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto name_end = stat.rfind(')');
  if (name_end == std::string::npos) return ::kill(process, 0) != 0 && errno == ESRCH;
  const char state = stat[name_end + 2];
  return state == 'Z' || state == 'X';
}

}  // namespace

bool is_locked_by_the_dead(const File& file) {
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) return false;
  const auto taker = taker_of(status.st_dev, status.st_ino);
  return taker && has_ended(*taker);
}

}  // namespace spillway::sys
