// Which volumes a run goes on from when another number of processes goes on with it, or when a process was killed while
// it did: run.json, and what is found on the volumes that can be reached, say it
// (docs/decisions/0010-another-world.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "spillway/journal/recovery.h"

namespace spillway::journal {

/// A line of a run, and the number of the shards that keep it.
struct KeptLine {
  std::uint64_t number = 0;  ///< 0: of a world of one
  std::uint32_t world = 1;
  friend bool operator==(const KeptLine&, const KeptLine&) = default;
};

/// What run.json says. It is durable before a volume of `now` is made.
struct RunLines {
  KeptLine now;
  /// The line whose last step is the first one of `now`. It is named until that step is durable on all shards of `now`
  /// and the volumes of this one are gone; until then `now` has no other step.
  std::optional<KeptLine> before = {};
};

/// A shard of which one process reaches the volumes of all paths.
struct FoundShard {
  std::uint32_t world = 1, shard = 0;
  NewestStep newest;
};

/// How a world of processes goes on.
struct WayOn {
  enum class Kind : std::uint8_t {
    open,     ///< with volumes of its own, those of `line`, which may have no step yet
    redeal,   ///< with the step of `line`, whose volumes it reads, on a new line
    nothing,  ///< no step is durable: from a checkpoint, or anew, on a new line
    missing,  ///< not at all: the step of `line` needs shards that nobody reaches
  };
  Kind kind = Kind::open;
  KeptLine line;                            ///< that the kind is about
  std::int64_t step = kNoStep;              ///< the last that all shards of `line` have, where all are found
  std::vector<std::uint32_t> missing = {};  ///< where the kind is that: numbers of shards, rising
};

/// How `world` processes go on with a run. `found` may name a shard several times, as volumes that no line names are
/// left where nobody reached them. Pure; every process of a world that is given the same answers alike.
[[nodiscard]] WayOn way_on(const RunLines& lines, std::span<const FoundShard> found, std::uint32_t world);

}  // namespace spillway::journal
