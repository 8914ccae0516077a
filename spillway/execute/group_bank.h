// Groups of bytes by number, between steps of whoever owns them: all in memory, or on storage paths with a few of them
// in memory at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/storage/path.h"
#include "spillway/storage/pool.h"

namespace spillway::execute {

class GroupBank {
 public:
  /// Work on a group while its bytes are in memory, aligned to 4096.
  using Work = std::function<void(std::size_t group, std::byte* memory)>;

  virtual ~GroupBank() = default;
  /// Calls `work` for each of `groups`, on this thread and in that order; no group twice. A group nobody has written is
  /// zeros. With `keep` its bytes after `work` are what it holds from then on, else they must be as they were. Throws
  /// what a drive or `work` threw; then some groups are done and the others as they were.
  virtual void pass(std::span<const std::size_t> groups, bool keep, const Work& work) = 0;
};

/// `sizes`: bytes of each group, > 0, multiples of 4096.
[[nodiscard]] std::unique_ptr<GroupBank> make_memory_bank(const std::vector<Bytes>& sizes);

/// At least three of the largest groups are in memory at a time, more as far as `staging` bytes allow: while one is
/// worked on, others are read and written. The paths hold nothing else and belong to the bank from then on; their
/// volumes go when it goes.
[[nodiscard]] std::unique_ptr<GroupBank> make_path_bank(const std::vector<Bytes>& sizes, Bytes staging,
                                                        std::vector<std::unique_ptr<storage::Path>> paths);

/// Bytes of volume that make_path_bank() needs on all paths together.
[[nodiscard]] Bytes path_bank_bytes(const std::vector<Bytes>& sizes, Bytes staging);

}  // namespace spillway::execute
