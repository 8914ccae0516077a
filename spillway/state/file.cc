#include "spillway/state/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::state {
namespace {

namespace fs = std::filesystem;

Error failed(const char* what, const fs::path& path, int error, ErrorCode code = ErrorCode::io) {
  return {code, text("cannot ", what, " ", path.string(), ": ", std::strerror(error)), error, path.string()};
}

/// Calls a system call again as long as a signal interrupts it.
template <class Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// Lets go of the pages that a transfer of [offset, offset + bytes) came past. The kernel keeps large pages that the
/// range covers in part, so the range begins a largest page earlier than the transfer did.
void drop_pages(int descriptor, Bytes offset, Bytes bytes) noexcept {
  constexpr Bytes kLargestPage = 8 * MiB;
  const Bytes begin = offset - std::min(offset, kLargestPage);
  (void)::posix_fadvise(descriptor, static_cast<off_t>(begin), static_cast<off_t>(offset + bytes - begin),
                        POSIX_FADV_DONTNEED);
}

}  // namespace

File::File(fs::path path, int descriptor, Bytes size) noexcept
    : path_(std::move(path)), descriptor_(descriptor), size_(size) {}

File::~File() {
  if (descriptor_ < 0) return;
  drop_pages(descriptor_, 0, size_);  // what was read ahead
  ::close(descriptor_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      unflushed_(other.unflushed_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  std::swap(unflushed_, other.unflushed_);
  return *this;
}

File File::open(const fs::path& path) {
  // O_NONBLOCK: a named pipe is refused below instead of waited for.
  const int descriptor = retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  if (descriptor < 0) {
    const bool absent = errno == ENOENT || errno == ENOTDIR;
    throw failed("open", path, errno, absent ? ErrorCode::bad_input : ErrorCode::io);
  }
  File file(path, descriptor, 0);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) throw failed("inspect", path, errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::bad_input, text(path.string(), " is not a regular file"), 0, path.string());
  }
  file.size_ = static_cast<Bytes>(status.st_size);
  return file;
}

/// O_EXCL: a link that somebody puts there in between is not followed.
File File::create(const fs::path& path, Bytes size, unsigned mode) {
  (void)::unlink(path.c_str());  // where that fails, making it says why
  const int descriptor =
      retry([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, static_cast<mode_t>(mode)); });
  if (descriptor < 0) throw failed("create", path, errno);
  File file(path, descriptor, size);
  try {
    file.reserve(size);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  return file;
}

void File::reserve(Bytes size) {
  if (size == 0) return;
  const auto length = static_cast<off_t>(size);
  int error = length < 0 ? EFBIG : 0;
  if (error == 0 && retry([&] { return ::fallocate(descriptor_, 0, 0, length); }) != 0) error = errno;
  if (error == EOPNOTSUPP || error == ENOSYS) {
    error = retry([&] { return ::ftruncate(descriptor_, length); }) == 0 ? 0 : errno;
  }
  if (error == 0) return;
  std::error_code unknown;
  const auto space = fs::space(path_.parent_path(), unknown);
  const auto room = unknown ? std::string() : text(" (", human(space.available), " are free)");
  throw Error(ErrorCode::io,
              text("cannot reserve ", human(size), " for ", path_.string(), ": ", std::strerror(error), room), error,
              path_.string());
}

void File::read(Bytes offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const auto granule = out.first(std::min<std::size_t>(out.size(), kReadGranule));
    read_granule(offset, granule);
    drop_pages(descriptor_, offset, granule.size());
    offset += granule.size();
    out = out.subspan(granule.size());
  }
}

void File::read_granule(Bytes offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const auto got = retry([&] { return ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset)); });
    if (got < 0) throw failed("read", path_, errno);
    if (got == 0) {
      throw Error(ErrorCode::io,
                  text(path_.string(), " ends at byte ", offset, ", ", out.size(),
                       " bytes too early: it was cut while it was open"),
                  0, path_.string());
    }
    offset += static_cast<Bytes>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

void File::write(Bytes offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min<std::size_t>(bytes.size(), kReadGranule));
    const auto put =
        retry([&] { return ::pwrite(descriptor_, piece.data(), piece.size(), static_cast<off_t>(offset)); });
    if (put < 0) throw failed("write", path_, errno);
    offset += static_cast<Bytes>(put);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    unflushed_ += static_cast<Bytes>(put);
    if (unflushed_ < kWriteGranule) continue;
    if (retry([&] { return ::fdatasync(descriptor_); }) != 0) throw failed("flush", path_, errno);
    drop_pages(descriptor_, 0, size_);
    unflushed_ = 0;
  }
}

void File::finish() {
  if (retry([&] { return ::fsync(descriptor_); }) != 0) throw failed("flush", path_, errno);
  drop_pages(descriptor_, 0, size_);
  // Linux frees the descriptor even when close() fails: never close it twice.
  if (::close(std::exchange(descriptor_, -1)) != 0) throw failed("close", path_, errno);
}

std::set<std::string> names_in(const fs::path& directory) {
  const auto close = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> open(::opendir(directory.c_str()), close);
  if (!open) throw failed("list", directory, errno);
  std::set<std::string> names;
  errno = 0;
  while (const auto* entry = ::readdir(open.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.insert(name);
    errno = 0;
  }
  if (errno != 0) throw failed("list", directory, errno);
  return names;
}

void sync_directory(const fs::path& directory) {
  const int descriptor = retry([&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) throw failed("open", directory, errno);
  const int error = retry([&] { return ::fsync(descriptor); }) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some file systems have no fsync for directories and say so with EINVAL; their renames are as durable as they get.
  if (error != 0 && error != EINVAL) throw failed("flush", directory, error);
}

}  // namespace spillway::state
