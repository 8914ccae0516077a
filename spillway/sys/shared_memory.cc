#include "spillway/sys/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

#include "spillway/sys/errno.h"
#include "spillway/sys/fork.h"
#include "spillway/sys/mapping.h"

namespace spillway::sys {
namespace {

/// Locks lie far beyond the end of any such file: where they are does not depend on what the file holds.
constexpr off_t kFirstLock = off_t{1} << 40;

struct flock range(short type, unsigned first, unsigned count) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = kFirstLock + static_cast<off_t>(first);
  lock.l_len = static_cast<off_t>(count);
  return lock;
}

void require_own(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw_errno(errno, "examine", path);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::bad_input, text(path.string(), " is not a regular file; remove it"), 0, path.string());
  }
  if (status.st_uid == ::geteuid()) return;
  throw Error(ErrorCode::bad_input,
              text(path.string(), " belongs to user ", status.st_uid, ", not to user ", ::geteuid(),
                   " who runs this; have it removed"),
              0, path.string());
}

}  // namespace

SharedMemory::SharedMemory(std::filesystem::path path) : path_(std::move(path)) {
  do {
    fd_ = open_unforked(
        [&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600); });
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) throw_errno(errno, "open", path_);
  try {
    require_own(fd_, path_);
  } catch (...) {
    close_unforked(fd_);
    throw;
  }
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr && forks_ == forks()) ::munmap(data_, bytes_);
  close_unforked(fd_);
}

Bytes SharedMemory::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) throw_errno(errno, "examine", path_);
  return static_cast<Bytes>(status.st_size);
}

/// Space is reserved, so that a full /dev/shm is an error here and not a SIGBUS later.
void SharedMemory::reset(Bytes bytes) const {
  if (::ftruncate(fd_, 0) != 0) throw_errno(errno, "empty", path_);
  const int failure = ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
  if (failure != 0) throw_errno(failure, text("reserve ", human(bytes), " for"), path_);
}

void SharedMemory::map(Bytes bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (data == MAP_FAILED) throw_errno(errno, "map", path_);
  data_ = static_cast<std::byte*>(data);
  keep_from_children({data_, round_up(bytes, kPage)});
  bytes_ = bytes;
}

/// Asks again and again: the kernel's own wait has no limit, and whoever holds the lock may have been stopped.
bool SharedMemory::lock_within(unsigned number, std::chrono::milliseconds limit) const {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!try_lock(number)) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool SharedMemory::try_lock(unsigned number) const noexcept {
  struct flock lock = range(F_WRLCK, number, 1);
  return ::fcntl(fd_, F_OFD_SETLK, &lock) == 0;
}

void SharedMemory::unlock(unsigned number) const noexcept {
  struct flock lock = range(F_UNLCK, number, 1);
  ::fcntl(fd_, F_OFD_SETLK, &lock);
}

bool SharedMemory::locked_elsewhere(unsigned first, unsigned count) const noexcept {
  struct flock lock = range(F_WRLCK, first, count);
  return ::fcntl(fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

std::filesystem::path shared_memory_directory() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  for (const char* candidate : std::array<const char*, 2>{"/dev/shm", runtime}) {
    std::error_code ignored;
    if (candidate == nullptr || !std::filesystem::is_directory(candidate, ignored)) continue;
    if (::access(candidate, R_OK | W_OK | X_OK) == 0) return candidate;
  }
  return std::filesystem::temp_directory_path();
}

unsigned user_id() noexcept {
  return ::geteuid();
}

int process_id() noexcept {
  return ::getpid();
}

}  // namespace spillway::sys
