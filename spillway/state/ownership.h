// Which process has a chunk. A Layout says what exists, the same for every world; an Ownership says what of it this
// process keeps, updates and writes.
//
// Chunks belong to shards by the layout alone, and shards to the processes of a world in contiguous runs, so another
// world moves whole chunks. A loop over Layout::chunks() is about all that exist; one over Ownership::mine() about what
// this process has.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "spillway/state/layout.h"

namespace spillway::state {

/// The processes of a run, as torch.distributed counts them.
struct World {
  std::size_t size = 1, rank = 0;  ///< rank < size
  /// Processes of each machine, which divides `size`: machine m has ranks [m * local, (m + 1) * local). 1: each process
  /// counts as a machine.
  std::size_t local = 1;
  friend bool operator==(const World&, const World&) = default;
  [[nodiscard]] constexpr std::size_t machines() const noexcept { return size / local; }
  [[nodiscard]] constexpr std::size_t machine_of(std::size_t process) const noexcept { return process / local; }
};

/// The rank among `size` that has the chunks of a shard of so many; a rank has shards that follow each other, one at
/// least.
[[nodiscard]] constexpr std::size_t rank_of(std::size_t shard, std::size_t shards, std::size_t size) noexcept {
  return ((shard + 1) * size - 1) / shards;
}

class Ownership {
 public:
  /// The ownership of a world of one, which has every chunk.
  explicit Ownership(const Layout& layout) : Ownership(layout, World{}) {}
  /// `replicated`: by chunk, whether each process has it instead of its owner alone; empty: none is. Throws
  /// Error(bad_input) for a rank outside the world, for more processes than shards, and for a chunk that is trained and
  /// replicated: it would be updated several times.
  Ownership(const Layout& layout, World world, const std::vector<bool>& replicated = {});

  [[nodiscard]] World world() const noexcept { return world_; }
  /// The only rank that has a chunk; empty: each one has it.
  [[nodiscard]] std::optional<std::size_t> owner(std::size_t chunk) const { return owners_.at(chunk); }
  /// Whether this process has it.
  [[nodiscard]] bool has(std::size_t chunk) const { return owner(chunk).value_or(world_.rank) == world_.rank; }
  /// Numbers of the chunks that this process has, rising.
  [[nodiscard]] const std::vector<std::size_t>& mine() const noexcept { return mine_; }

 private:
  World world_;
  std::vector<std::optional<std::size_t>> owners_;
  std::vector<std::size_t> mine_;
};

}  // namespace spillway::state
