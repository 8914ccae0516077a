// All memory the engine holds on one tier: mapped once, touched once, laid out by the plan.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::memory {

struct ArenaOptions {
  bool huge_pages = true;  ///< ask for transparent huge pages; a refusal is not an error
  bool touch = true;       ///< fault every page in at construction, so that no step pays for first touch
};

/// Bytes [begin, end) of an arena, whole pages, for a NUMA node of this machine.
struct ArenaPart {
  Bytes begin = 0, end = 0;
  int node = 0;
};

/// Anonymous zeroed memory, aligned to 2 MiB. Movable, not copyable; unmapped by the destructor. Forked children do not
/// have it: the kernel would copy what a ring has registered while it forks.
class Arena {
 public:
  Arena() = default;
  /// Throws Error(does_not_fit) with the bytes asked when the kernel refuses. size 0 is an empty arena.
  explicit Arena(Bytes size, ArenaOptions options = {});
  /// Each part on its node before anyone touches it, and every page of it asked for afterwards. Throws as
  /// memory::place: Error(does_not_fit) before the kernel would end the process, Error(unsupported) where memory may
  /// not be placed.
  Arena(Bytes size, const std::vector<ArenaPart>& parts, ArenaOptions options = {});
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] Bytes size() const noexcept { return size_; }
  [[nodiscard]] std::span<std::byte> span() const noexcept { return {data_, size_}; }

 private:
  void map(Bytes size, const ArenaOptions& options);

  std::byte* data_ = nullptr;
  Bytes size_ = 0;    ///< as asked
  Bytes mapped_ = 0;  ///< as mapped: `size_` rounded up to huge pages
};

}  // namespace spillway::memory
