// An open file: whole transfers, space, durability, and whether O_DIRECT can be used on it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "spillway/base/bytes.h"

namespace spillway::sys {

struct FileOptions {
  bool write = false;    ///< for reading and writing; else for reading only
  bool create = false;   ///< a new file: where the name is taken, by a link too, it is refused (EEXIST); needs `write`
  unsigned mode = 0600;  ///< permissions of a new file, less the umask
  bool follow = true;    ///< false: a symbolic link at the end of the path is refused (ELOOP)
  bool exclusive = false;  ///< of a block device: refuse it (EBUSY) while the kernel or another such File uses it
  bool direct = false;     ///< O_DIRECT when the file system has it with an alignment of at most kDirectAlignment
};

/// What O_DIRECT may ask of addresses, lengths and offsets at most; a file system that asks more is used buffered.
inline constexpr Bytes kDirectAlignment = 4 * KiB;

/// Owns a file descriptor. Movable; closed by the destructor. Errors throw spillway::Error with errno and path.
/// Different ranges may be read and written from several threads at once.
class File {
 public:
  File() = default;
  explicit File(std::filesystem::path path, FileOptions options = {});
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  /// Fills `into` from `offset`, however many calls that takes. A file that ends early throws Error(io).
  void read(std::span<std::byte> into, Bytes offset) const;
  /// Writes all of `from` at `offset`.
  void write(std::span<const std::byte> from, Bytes offset) const;
  /// Makes the file `bytes` long with its space reserved; writes zeros where the file system cannot reserve. What lies
  /// before `from` (a multiple of kDirectAlignment) is left as it is. Throws Error(does_not_fit) when there is not
  /// enough.
  void reserve(Bytes bytes, Bytes from = 0) const;
  /// Gives the file another name on the same file system, in place of whatever has it.
  void rename(const std::filesystem::path& to);
  /// Waits until data and size are durable.
  void sync() const;
  /// Takes the advisory lock of this file for as long as it is open; false when another process (or File) holds it.
  [[nodiscard]] bool lock() const;
  /// Whether path() names this very file, and not another one, or none, since it was opened. A lock that was waited for
  /// says nothing of the name: whoever had it may have removed the file or put another in its place.
  [[nodiscard]] bool has_its_name() const noexcept;

  [[nodiscard]] Bytes size() const;      ///< bytes from start to end; of a block device too
  [[nodiscard]] Bytes reserved() const;  ///< bytes of the file system's blocks it holds
  [[nodiscard]] bool is_regular() const;
  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] bool is_open() const noexcept { return fd_ >= 0; }
  [[nodiscard]] bool direct() const noexcept { return direct_; }
  /// Why O_DIRECT was asked for and is not used; empty otherwise.
  [[nodiscard]] const std::string& direct_refusal() const noexcept { return direct_refusal_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  void open(const FileOptions& options);
  void make(const FileOptions& options);
  void close() noexcept;

  std::filesystem::path path_;
  int fd_ = -1;
  bool direct_ = false;
  std::string direct_refusal_;
};

/// Bytes an unprivileged process can still write below `directory`.
[[nodiscard]] Bytes free_space(const std::filesystem::path& directory);

/// A new file in `directory`, for reading and writing, whose name is gone again when this returns: the file goes with
/// the object. It has a name that nobody can foresee until then.
[[nodiscard]] File nameless_file(const std::filesystem::path& directory, FileOptions options = {});

/// Whether the file's pages are its storage itself (DAX: persistent memory, CXL memory), without a page cache between.
[[nodiscard]] bool is_dax(const File& file) noexcept;

/// Makes names created, renamed or removed in `directory` durable.
void sync_directory(const std::filesystem::path& directory);

}  // namespace spillway::sys
