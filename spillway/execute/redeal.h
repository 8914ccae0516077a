// The state that another number of processes has left: each process reads volumes of theirs, and every chunk goes to
// those that have it now (docs/decisions/0010-another-world.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "spillway/execute/recovery.h"
#include "spillway/execute/run_plan.h"
#include "spillway/execute/volumes.h"
#include "spillway/journal/recovery.h"
#include "spillway/memory/arena.h"
#include "spillway/state/checkpoint.h"

namespace spillway::execute {

/// The volumes of one shard, whichever world has written them.
struct ShardVolumes {
  state::World world;               ///< its rank is the number of the shard
  std::vector<VolumePlace> places;  ///< by path
};

struct RedealOptions {
  std::int64_t step = 0;             ///< the last that all of the old shards have
  std::vector<std::size_t> readers;  ///< by old shard: the rank that reads it
  /// Volumes of each old shard; empty for a shard that another process reads.
  std::vector<std::vector<VolumePlace>> places;
};

/// The step that is durable on volumes of a shard, as newest_step() says it.
[[nodiscard]] journal::NewestStep newest_step(const RunPlan& plan, const VolumeSettings& volumes,
                                              const ShardVolumes& shard);

/// A chunk on its way.
struct Delivery {
  std::size_t shard = 0;  ///< of the old world, which it is read of
  std::size_t chunk = 0;
  std::size_t reader = 0;       ///< the rank that reads it
  std::vector<std::size_t> to;  ///< ranks that have it now, rising; the reader may be one of them
};
/// All of them, in rounds in each of which a process reads one chunk at most: each chunk once to every rank that has
/// it. The same on all processes. A chunk that every old shard has comes from a process's own shard where it reads one.
[[nodiscard]] std::vector<std::vector<Delivery>> deliveries(const state::Layout& layout, const state::Ownership& before,
                                                            const state::Ownership& now,
                                                            std::span<const std::size_t> readers);

/// Called by all processes of the plan's world alike, before any of them has made a step.
class Redeal {
 public:
  /// `volumes`: of this process; which of the old ones it reads `options` say. `work`: memory that is free, aligned to
  /// 4096; where it is too small there is more. The rest must outlive it.
  Redeal(const RunPlan& plan, VolumeSettings volumes, unsigned threads, const RedealOptions& options,
         std::span<std::byte> work);
  ~Redeal();

  /// Brings what this process has to `chunks`. Writes nothing to the old volumes. Returns what was recovered, the same
  /// on all but for the chunks that were replayed. Throws what ReadBack does, and what the network fails with.
  Recovery run(state::ChunkStore& chunks);

 private:
  struct Shard;
  void open(std::size_t shard);
  void share_commit(Recovery& recovery);
  void read(const Delivery& delivery);
  void hand_over(const Delivery& delivery, state::ChunkStore& chunks);
  [[nodiscard]] std::size_t rank() const noexcept { return plan_.ownership.world().rank; }

  const RunPlan plan_;
  const VolumeSettings volumes_;
  const unsigned threads_;
  const RedealOptions& options_;
  memory::Arena arena_;
  std::span<std::byte> outgoing_, incoming_, work_;
  std::unique_ptr<Shard> shard_;  ///< the one that is open
  std::size_t replayed_ = 0, replayed_steps_ = 0;
};

}  // namespace spillway::execute
