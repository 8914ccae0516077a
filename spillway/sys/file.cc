#include "spillway/sys/file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <random>
#include <utility>

#include "spillway/base/interrupt.h"
#include "spillway/sys/errno.h"
#include "spillway/sys/fork.h"
#include "spillway/sys/mapping.h"

namespace spillway::sys {
namespace {

constexpr Bytes kZeros = 1 * MiB;
#ifdef STATX_ATTR_DAX
constexpr std::uint64_t kDaxAttribute = STATX_ATTR_DAX;
#else
constexpr std::uint64_t kDaxAttribute = 0x00200000;
#endif

/// A process that began without standard streams would give their numbers to its files, and print into these.
int move_above_standard(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int higher = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int failure = errno;
  ::close(fd);
  errno = failure;
  return higher;
}

int open_retrying(const std::filesystem::path& path, int flags, unsigned mode = 0) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, static_cast<mode_t>(mode));
  } while (fd < 0 && errno == EINTR);
  return move_above_standard(fd);
}

/// A file that is new is made without O_DIRECT, which gets it afterwards: where the file system has none, some kernels
/// refuse to open the file when they have made it.
bool switch_to_direct(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

void switch_from_direct(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0) static_cast<void>(::fcntl(fd, F_SETFL, flags & ~O_DIRECT));
}

struct stat status_of(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw_errno(errno, "examine", path);
  return status;
}

/// Why O_DIRECT is of no use on an open file; empty when it is. Unknown counts as usable: the caller's first transfer
/// would tell.
std::string refusal_of_direct(int fd) {
  struct statfs system {};
  struct stat inode {};
  const bool device = ::fstat(fd, &inode) == 0 && S_ISBLK(inode.st_mode);  // its node lies on a tmpfs
  if (!device && ::fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC)
    return "the file system is memory (tmpfs)";
#ifdef STATX_DIOALIGN
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) return {};
  if ((status.stx_mask & STATX_DIOALIGN) == 0) return {};
  if (status.stx_dio_mem_align == 0) return "the file system does not support O_DIRECT";
  if (std::max(status.stx_dio_mem_align, status.stx_dio_offset_align) > kDirectAlignment) {
    return text("the file system wants O_DIRECT aligned to ", human(status.stx_dio_offset_align));
  }
#endif
  return {};
}

void write_zeros(const File& file, Bytes from, Bytes bytes) {
  const Mapping zeros(kZeros);
  for (Bytes at = from; at < bytes; at += kZeros) {
    throw_if_interrupted();
    file.write(zeros.span().first(std::min(kZeros, bytes - at)), at);
  }
}

}  // namespace

File::File(std::filesystem::path path, FileOptions options) : path_(std::move(path)) {
  open(options);
}

File::~File() {
  close();
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      direct_(std::exchange(other.direct_, false)),
      direct_refusal_(std::move(other.direct_refusal_)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    close();
    path_ = std::move(other.path_);
    fd_ = std::exchange(other.fd_, -1);
    direct_ = std::exchange(other.direct_, false);
    direct_refusal_ = std::move(other.direct_refusal_);
  }
  return *this;
}

void File::open(const FileOptions& options) {
  if (options.create) return make(options);
  const int flags =
      (options.write ? O_RDWR : O_RDONLY) | (options.follow ? 0 : O_NOFOLLOW) | (options.exclusive ? O_EXCL : 0);
  if (options.direct) {
    fd_ = open_unforked([&] { return open_retrying(path_, flags | O_DIRECT); });
    if (fd_ >= 0) direct_refusal_ = refusal_of_direct(fd_);
    if (fd_ < 0 && errno == EINVAL) direct_refusal_ = "the file system does not support O_DIRECT";
    direct_ = fd_ >= 0 && direct_refusal_.empty();
    if (direct_) return;
    close();
  }
  fd_ = open_unforked([&] { return open_retrying(path_, flags); });
  if (fd_ < 0) throw_errno(errno, "open", path_);
}

/// O_EXCL: no link is followed, and nothing that is there is written to.
void File::make(const FileOptions& options) {
  fd_ = open_unforked([&] { return open_retrying(path_, O_RDWR | O_CREAT | O_EXCL, options.mode); });
  if (fd_ < 0) throw_errno(errno, "create", path_);
  if (!options.direct) return;
  if (switch_to_direct(fd_)) {
    direct_refusal_ = refusal_of_direct(fd_);
  } else {
    direct_refusal_ = "the file system does not support O_DIRECT";
  }
  direct_ = direct_refusal_.empty();
  if (!direct_) switch_from_direct(fd_);
}

/// The lock is given back by name: a ring that was just torn down may hold the open file a little longer than we do. In
/// a forked child the descriptor is another one, so that the lock stays.
void File::close() noexcept {
  if (fd_ < 0) return;
  ::flock(fd_, LOCK_UN);
  close_unforked(std::exchange(fd_, -1));
}

void File::read(std::span<std::byte> into, Bytes offset) const {
  while (!into.empty()) {
    const ssize_t moved = ::pread(fd_, into.data(), into.size(), static_cast<off_t>(offset));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) throw_errno(errno, text("read ", into.size(), " bytes at ", offset, " of"), path_);
    if (moved == 0) {
      throw Error(ErrorCode::io,
                  text(path_.string(), " ends at byte ", offset, "; ", into.size(), " more bytes were expected there"),
                  0, path_.string());
    }
    into = into.subspan(static_cast<std::size_t>(moved));
    offset += static_cast<Bytes>(moved);
  }
}

void File::write(std::span<const std::byte> from, Bytes offset) const {
  while (!from.empty()) {
    const ssize_t moved = ::pwrite(fd_, from.data(), from.size(), static_cast<off_t>(offset));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) {
      throw_errno(moved < 0 ? errno : ENOSPC, text("write ", from.size(), " bytes at ", offset, " of"), path_);
    }
    from = from.subspan(static_cast<std::size_t>(moved));
    offset += static_cast<Bytes>(moved);
  }
}

void File::reserve(Bytes bytes, Bytes from) const {
  if (bytes <= from) return;
  int failure = EINTR;
  while (failure == EINTR) {
    throw_if_interrupted();
    failure = ::fallocate(fd_, 0, static_cast<off_t>(from), static_cast<off_t>(bytes - from)) == 0 ? 0 : errno;
  }
  if (failure == 0) return;
  if (failure != EOPNOTSUPP) throw_errno(failure, text("reserve ", human(bytes), " for"), path_);
  write_zeros(*this, from, bytes);
}

void File::rename(const std::filesystem::path& to) {
  auto path = to;  // before the rename, after which nothing may fail
  if (::rename(path_.c_str(), to.c_str()) != 0) throw_errno(errno, text("rename ", path_.string(), " to"), to);
  path_ = std::move(path);
}

void File::sync() const {
  while (::fsync(fd_) != 0) {
    if (errno != EINTR) throw_errno(errno, "flush", path_);
  }
}

bool File::lock() const {
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  if (errno == EOPNOTSUPP || errno == ENOLCK) return true;
  throw_errno(errno, "lock", path_);
}

bool File::has_its_name() const noexcept {
  struct stat opened {
  }, named{};
  if (::fstat(fd_, &opened) != 0 || ::stat(path_.c_str(), &named) != 0) return false;
  return opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

Bytes File::size() const {
  const struct stat status = status_of(fd_, path_);
  if (!S_ISBLK(status.st_mode)) return static_cast<Bytes>(status.st_size);
  std::uint64_t bytes = 0;
  if (::ioctl(fd_, BLKGETSIZE64, &bytes) != 0) throw_errno(errno, "examine", path_);
  return bytes;
}

Bytes File::reserved() const {
  return static_cast<Bytes>(status_of(fd_, path_).st_blocks) * 512;
}

bool File::is_regular() const {
  return S_ISREG(status_of(fd_, path_).st_mode);
}

Bytes free_space(const std::filesystem::path& directory) {
  struct statvfs system {};
  if (::statvfs(directory.c_str(), &system) != 0) throw_errno(errno, "ask for the free space of", directory);
  return static_cast<Bytes>(system.f_bavail) * system.f_frsize;
}

bool is_dax(const File& file) noexcept {
  struct statx status {};
  if (::statx(file.fd(), "", AT_EMPTY_PATH, STATX_BASIC_STATS, &status) != 0) return false;
  return (status.stx_attributes & kDaxAttribute) != 0;
}

File nameless_file(const std::filesystem::path& directory, FileOptions options) {
  std::random_device random;
  options.write = options.create = true;
  File file(directory / text(".spillway-", ::getpid(), '-', random(), '-', random()), options);
  static_cast<void>(::unlink(file.path().c_str()));
  return file;
}

void sync_directory(const std::filesystem::path& directory) {
  const int fd = open_retrying(directory, O_RDONLY | O_DIRECTORY);
  if (fd < 0) throw_errno(errno, "open", directory);
  const int failure = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (failure != 0 && failure != EINVAL) throw_errno(failure, "flush", directory);
}

}  // namespace spillway::sys
