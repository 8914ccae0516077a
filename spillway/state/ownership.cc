#include "spillway/state/ownership.h"

#include "spillway/base/error.h"

namespace spillway::state {

Ownership::Ownership(const Layout& layout, World world, const std::vector<bool>& replicated) : world_(world) {
  const auto shards = layout.shards();
  if (world.rank >= world.size) {
    throw Error(ErrorCode::bad_input, text("rank ", world.rank, " of a world of ", world.size, " processes"));
  }
  if (world.size > shards) {
    throw Error(ErrorCode::bad_input, text(world.size, " processes for ", shards,
                                           " shards of the state; start at most as many as virtual_ranks"));
  }
  for (const auto& chunk : layout.chunks()) {
    const bool everywhere = chunk.id < replicated.size() && replicated[chunk.id];
    if (everywhere && is_trainable(chunk.training)) {
      throw Error(ErrorCode::bad_input, text("chunk ", chunk.id, " of ", layout.blocks()[chunk.block].name,
                                             " is trained; only what is frozen can be replicated"));
    }
    owners_.push_back(everywhere ? std::nullopt : std::optional(rank_of(chunk.shard, shards, world.size)));
    if (has(chunk.id)) mine_.push_back(chunk.id);
  }
}

}  // namespace spillway::state
