#include "spillway/storage/preparation.h"

#include "spillway/storage/zeros.h"

namespace spillway::storage {

Superblock wanted(const VolumeOptions& options) {
  Superblock out;
  out.capacity = options.capacity;
  out.metadata = options.metadata;
  out.piece_size = kExtentAlignment;
  out.run = options.run;
  out.model = options.model;
  out.number = options.number;
  out.paths = options.paths;
  out.set = options.set;
  out.shard = options.shard;
  out.world = options.world;
  out.format = format_of(options.world);
  out.prewritten = options.prewrite;
  return out;
}

Bytes volume_bytes(Bytes metadata, Bytes capacity) noexcept {
  return kSuperblockExtent + metadata + capacity;
}

bool serves(const SuperblockPair& pair, const VolumeOptions& options) {
  const Superblock& there = pair.superblock;
  Superblock like = wanted(options);
  if (!pair.damage.empty() || !pair.older.empty() || there.capacity < like.capacity || options.metadata > 0)
    return false;
  like.capacity = there.capacity;
  like.set = there.set;
  like.prewritten = like.prewritten || there.prewritten;
  return there == like;
}

void prepare(const sys::File& file, const VolumeOptions& options, bool prewritten) {
  const Bytes data = volume_bytes(options.metadata, 0);
  write_zeros(file, kSuperblockExtent, data);
  if (options.prewrite && !prewritten) write_zeros(file, data, data + options.capacity, options.progress);
  file.sync();
  Superblock superblock = wanted(options);
  superblock.prewritten = superblock.prewritten || prewritten;
  write_superblocks(file, superblock);
}

void refit(const sys::File& file, const SuperblockPair& pair, const VolumeOptions& options) {
  const Superblock& there = pair.superblock;
  const bool long_enough = there.capacity + there.metadata >= options.capacity + options.metadata;
  Superblock coming = wanted(options);
  coming.ready = false;
  coming.prewritten = there.prewritten && long_enough;
  const bool first = pair.state == SuperblockState::foreign;
  first ? write_first_superblocks(file, coming) : write_superblocks(file, coming);
  prepare(file, options, coming.prewritten);
}

Superblock grown(const Superblock& there, const VolumeOptions& options) {
  Superblock out = there;
  out.capacity = options.capacity;
  out.prewritten = there.prewritten && options.prewrite;
  return out;
}

void prepare_more(const sys::File& file, const Superblock& there, const VolumeOptions& options) {
  if (options.prewrite) {
    write_zeros(file, volume_bytes(there.metadata, there.capacity), volume_bytes(there.metadata, options.capacity),
                options.progress);
  }
  file.sync();
}

}  // namespace spillway::storage
