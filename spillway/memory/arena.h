// All memory of the host that the engine holds: mapped once, touched once, laid out by the plan.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/memory/backing.h"

namespace spillway::memory {

struct ArenaOptions {
  bool huge_pages = true;  ///< ask for transparent huge pages; a refusal is not an error
  bool touch = true;       ///< fault every page in at construction, so that no step pays for first touch
};

/// Zeroed memory, aligned to 2 MiB, anonymous but for parts that are for files. Movable, not copyable; unmapped by the
/// destructor. Forked children do not have it: the kernel would copy what a ring has registered while it forks.
class Arena {
 public:
  Arena() = default;
  /// Throws Error(does_not_fit) with the bytes asked when the kernel refuses. size 0 is an empty arena.
  explicit Arena(Bytes size, ArenaOptions options = {});
  /// `parts`: in order; what none of them covers lies anywhere. A part that is for a file has that file's pages, all of
  /// whose space is reserved before any is mapped: Error(does_not_fit) where the file system has too little,
  /// Error(bad_input) where no file can be made. Each part that is for a NUMA node lies there before anyone touches it,
  /// and every page of it is asked for afterwards. Throws as memory::place: Error(does_not_fit) before the kernel would
  /// end the process, Error(unsupported) where memory may not be placed.
  Arena(Bytes size, const std::vector<ArenaPart>& parts, ArenaOptions options = {});
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] Bytes size() const noexcept { return size_; }
  [[nodiscard]] std::span<std::byte> span() const noexcept { return {data_, size_}; }
  /// What a ring may register: the kernel does not pin pages of most files for long, so what lies above the last part
  /// that is for one.
  [[nodiscard]] std::span<std::byte> pinnable() const noexcept { return span().subspan(files_end_); }

 private:
  struct Addresses {
    Bytes bytes = 0;
  };
  explicit Arena(Addresses size);  ///< that nothing is mapped at

  void take(std::byte* data, Bytes size, Bytes mapped);
  void map_parts(const std::vector<ArenaPart>& parts);

  std::byte* data_ = nullptr;
  Bytes size_ = 0;       ///< as asked
  Bytes mapped_ = 0;     ///< as mapped: `size_` rounded up to huge pages
  Bytes files_end_ = 0;  ///< above it nothing is for a file
};

}  // namespace spillway::memory
