// The identity of a volume as bytes, and its two copies in the file: docs/formats/volume.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "spillway/base/bytes.h"
#include "spillway/sys/file.h"

namespace spillway::storage {

/// The bytes of one copy.
inline constexpr Bytes kSuperblockBytes = 4 * KiB;
/// The offsets of the copies are far enough apart that one fault of the drive does not take both.
inline constexpr std::array<Bytes, 2> kSuperblockOffsets = {0, 512 * KiB};
/// The superblocks take this space from the start of the file; the rest of it is zero.
inline constexpr Bytes kSuperblockExtent = 1 * MiB;
inline constexpr std::uint32_t kVolumeFormat = 2;
/// The format of a volume that holds one of several shards of a run. It differs so that a build that knows nothing of
/// shards refuses such a volume.
inline constexpr std::uint32_t kShardFormat = 3;
[[nodiscard]] constexpr std::uint32_t format_of(std::uint32_t world) noexcept {
  return world > 1 ? kShardFormat : kVolumeFormat;
}
/// A run's identity is at most this long.
inline constexpr std::size_t kMostRunBytes = 256;

struct Superblock {
  Bytes capacity = 0;        ///< bytes of extents
  Bytes metadata = 0;        ///< bytes between the superblocks and the extents
  Bytes piece_size = 0;      ///< unit of checksums
  std::string run;           ///< identity of the run it belongs to, at most kMostRunBytes
  std::uint64_t model = 0;   ///< fingerprint of the model whose state it holds
  std::uint32_t number = 0;  ///< of this path among the run's
  std::uint32_t paths = 1;   ///< of the run
  std::uint64_t set = 0;     ///< the same in all volumes of a shard that were made together
  std::uint32_t shard = 0;   ///< of the run's state that it holds
  std::uint32_t world = 1;   ///< how many shards the run has; more than 1 goes with kShardFormat
  bool ready = true;         ///< false: it is being prepared, and holds nothing
  bool prewritten = false;   ///< every byte of it was written once
  std::uint32_t format = kVolumeFormat;

  bool operator==(const Superblock&) const = default;
};

/// What is in the first bytes of a file. Of two copies that are not valid the larger value is believed.
enum class SuperblockState : std::uint8_t {
  foreign,       ///< not a Spillway volume
  damaged,       ///< the magic is right, the checksum is not; or the drive cannot give it
  alien,         ///< written on a machine of the other byte order
  other_format,  ///< a whole superblock of another format version
  valid,
};

/// Fills `out` (kSuperblockBytes long). A run's identity that is too long throws Error(bad_input).
void encode(const Superblock& superblock, std::span<std::byte> out);
/// Reads `in` (kSuperblockBytes long). `superblock` is set when the answer is valid; when it is other_format, its
/// format, capacity and run are.
[[nodiscard]] SuperblockState decode(std::span<const std::byte> in, Superblock& superblock);

/// What the two copies of a file say.
struct SuperblockPair {
  Superblock superblock;  ///< of the first valid copy, or as `decode` says
  SuperblockState state = SuperblockState::foreign;
  std::string damage;  ///< which copy is not valid, or cannot be read, although the other is; empty otherwise
  std::string older;   ///< which copy a writer did not reach, or a drive lost; empty: the valid ones are the same
  Bytes damaged = 0;   ///< where that copy lies
};

/// Copies that the drive cannot give are damaged ones. Of two valid copies that differ the ready one counts, and of two
/// ready ones the larger: a writer makes a volume not ready before it gives it to another run. Two ready copies of
/// different runs or makings are damage. Throws Error only where the file cannot be asked at all.
[[nodiscard]] SuperblockPair read_superblocks(const sys::File& file);
/// Writes one copy after the other, each flushed before the next is touched: at any instant one is whole.
void write_superblocks(const sys::File& file, const Superblock& superblock);
/// Writes both copies where there is none yet. Whatever is torn, what is there is zeros, or is read as `superblock`,
/// which must not be ready.
void write_first_superblocks(const sys::File& file, const Superblock& superblock);

/// The superblock of a volume that its run has given back: it holds nothing and is nobody's.
[[nodiscard]] Superblock given_back(Superblock of);
[[nodiscard]] bool is_nobodys(const Superblock& superblock) noexcept;

}  // namespace spillway::storage
