#include "spillway/storage/refusal.h"

#include <ios>

#include "spillway/base/error.h"

namespace spillway::storage {

std::string reason_against_owner(const SuperblockPair& there, const std::string& run) {
  switch (there.state) {
    case SuperblockState::valid:
      if (there.superblock.run == run || is_nobodys(there.superblock)) return "";
      return text("belongs to run '", there.superblock.run, "'");
    case SuperblockState::foreign:
      return "is not a Spillway volume";
    case SuperblockState::damaged:
      return there.damage.empty() ? "has a damaged superblock" : there.damage;
    case SuperblockState::alien:
      return "was written on a machine of the other byte order";
    case SuperblockState::other_format:
      return text("has format ", there.superblock.format, ", which this build does not read (it reads ", kVolumeFormat,
                  " and ", kShardFormat, "), but the release that wrote it does");
  }
  return "cannot be read";
}

bool is_older_of(const SuperblockPair& there, const std::string& run) {
  return there.state == SuperblockState::other_format && there.superblock.format < kVolumeFormat &&
         there.superblock.run == run;
}

std::string reason_against_reopening(const SuperblockPair& there, const Superblock& wanted, Bytes file_size) {
  if (std::string reason = reason_against_owner(there, wanted.run); !reason.empty()) return reason;
  const Superblock& is = there.superblock;
  if (is_nobodys(is)) return "holds nothing: the run that had it gave it back";
  if (!is.ready) return "was being prepared when that was interrupted, and holds nothing";
  if (is.model != wanted.model) {
    return text("holds the state of another model (fingerprint ", std::hex, is.model, ", not ", wanted.model,
                "), or of another optimizer or state_format");
  }
  if (is.shard != wanted.shard || is.world != wanted.world) {
    return text("is shard ", is.shard, " of ", is.world, " of its run, not shard ", wanted.shard, " of ", wanted.world);
  }
  if (is.number != wanted.number || is.paths != wanted.paths) {
    return text("is path ", is.number, " of ", is.paths, " of its run, not path ", wanted.number, " of ", wanted.paths);
  }
  if (is.piece_size != wanted.piece_size) {
    return text("has pieces of ", is.piece_size, " bytes, not of ", wanted.piece_size);
  }
  if (is.metadata < wanted.metadata) {
    return text("has room for ", human(is.metadata), " of records, not for ", human(wanted.metadata));
  }
  if (const Bytes whole = kSuperblockExtent + is.metadata + is.capacity; file_size < whole) {
    return text("was cut short: it has ", file_size, " bytes of ", whole);
  }
  return {};
}

}  // namespace spillway::storage
