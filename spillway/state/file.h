// One open file that closes itself. Every transfer is complete, or it is an Error with path and errno.
#pragma once

#include <cstddef>
#include <filesystem>
#include <set>
#include <span>
#include <string>

#include "spillway/base/bytes.h"

namespace spillway::state {

/// Bytes moved at a time before their pages leave the page cache.
inline constexpr Bytes kReadGranule = 8 * MiB;
/// Bytes written to a file before they are flushed and leave the page cache.
inline constexpr Bytes kWriteGranule = 64 * MiB;

inline constexpr unsigned kPublic = 0666;   ///< permissions of what is for others, too
inline constexpr unsigned kPrivate = 0600;  ///< of what belongs to one run

/// Movable, not copyable. read() may be called from several threads, the rest from one.
class File {
 public:
  /// For reading. Throws Error(bad_input) when there is no such file or it is not a regular file, else Error(io).
  static File open(const std::filesystem::path& path);
  /// For writing: a new file in place of what has the name, a link included, `size` bytes long and reserved on the file
  /// system where it can do that. `mode`: its permissions, less the umask. Throws Error(io) (disk full, read-only ...);
  /// then no file is left at `path`.
  static File create(const std::filesystem::path& path, Bytes size, unsigned mode = kPublic);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] Bytes size() const noexcept { return size_; }  ///< when it was opened or created

  /// Fills `out` from `offset` on and drops the pages read. Throws Error(io), also when the file ends early.
  void read(Bytes offset, std::span<std::byte> out) const;
  /// Writes all of `bytes` at `offset`; flushes and drops pages now and then, so that dirty pages stay bounded.
  void write(Bytes offset, std::span<const std::byte> bytes);
  /// Everything written is durable when this returns, and the file is closed. Throws Error(io).
  void finish();

 private:
  File(std::filesystem::path path, int descriptor, Bytes size) noexcept;
  void read_granule(Bytes offset, std::span<std::byte> out) const;
  void reserve(Bytes size);

  std::filesystem::path path_;
  int descriptor_ = -1;
  Bytes size_ = 0;
  Bytes unflushed_ = 0;
};

/// Makes renames and removals in `directory` durable. Throws Error(io).
void sync_directory(const std::filesystem::path& directory);

/// Names of what is in a directory. Throws Error(io), and std::bad_alloc, which the standard library's iterator cannot.
[[nodiscard]] std::set<std::string> names_in(const std::filesystem::path& directory);

}  // namespace spillway::state
