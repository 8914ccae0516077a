// A small file that processes map together, with locks that the kernel gives back when their holder dies.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "spillway/base/bytes.h"
#include "spillway/sys/fork.h"

namespace spillway::sys {

/// Opened or created with mode 0600; nobody but this user can join. Locks are numbered; they belong to the object, so
/// that two objects of one process exclude each other too. A lock is free when the object goes, or the process dies.
/// A child that is forked meanwhile has neither file, mapping nor locks. Errors throw spillway::Error with errno and
/// path.
class SharedMemory {
 public:
  /// An empty file when there was none. Throws Error(bad_input) when the name is not a regular file of this user's.
  explicit SharedMemory(std::filesystem::path path);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  [[nodiscard]] Bytes size() const;
  /// Makes the file `bytes` zeros. Only while nobody has it mapped: they would be killed by SIGBUS.
  void reset(Bytes bytes) const;
  /// Maps the first `bytes` (> 0, at most the size), once.
  void map(Bytes bytes);
  [[nodiscard]] std::span<std::byte> span() const noexcept { return {data_, bytes_}; }

  /// Waits for a lock, for at most about `limit`; false when another object has it until then.
  [[nodiscard]] bool lock_within(unsigned number, std::chrono::milliseconds limit) const;
  /// Takes a lock, never waiting; false when another object has it.
  [[nodiscard]] bool try_lock(unsigned number) const noexcept;
  void unlock(unsigned number) const noexcept;
  /// Whether another object holds any of `count` locks from `first` on. An error counts as yes.
  [[nodiscard]] bool locked_elsewhere(unsigned first, unsigned count = 1) const noexcept;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::byte* data_ = nullptr;
  Bytes bytes_ = 0;
  std::uint64_t forks_ = forks();
};

/// Where such files live: /dev/shm, else $XDG_RUNTIME_DIR, else the directory for temporary files.
[[nodiscard]] std::filesystem::path shared_memory_directory();

/// This user's number, as it stands in names of shared files.
[[nodiscard]] unsigned user_id() noexcept;
/// This process's number.
[[nodiscard]] int process_id() noexcept;

}  // namespace spillway::sys
