// The first extent of a volume, as bytes: docs/formats/volume.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "spillway/base/bytes.h"

namespace spillway::storage {

/// Bytes of the superblock that carry anything; the rest of its extent is zero.
inline constexpr Bytes kSuperblockBytes = 4 * KiB;
/// Space that the superblock takes from the start of the file.
inline constexpr Bytes kSuperblockExtent = 1 * MiB;
inline constexpr std::uint32_t kVolumeFormat = 1;
/// A run's identity is at most this long.
inline constexpr std::size_t kMostRunBytes = 256;

struct Superblock {
  Bytes capacity = 0;    ///< bytes of extents that follow the superblock's own
  Bytes piece_size = 0;  ///< unit of checksums
  std::string run;       ///< identity of the run it belongs to, at most kMostRunBytes
};

/// What is in the first bytes of a file.
enum class SuperblockState : std::uint8_t {
  valid,
  foreign,  ///< not a Spillway volume
  damaged,  ///< the magic is right, the checksum is not
  alien,    ///< written on a machine of the other endianness
  newer,    ///< a format version this build does not know
};

/// Fills `out` (kSuperblockBytes long).
void encode(const Superblock& superblock, std::span<std::byte> out);
/// Reads `in` (kSuperblockBytes long); `superblock` is set when the answer is valid.
[[nodiscard]] SuperblockState decode(std::span<const std::byte> in, Superblock& superblock);

}  // namespace spillway::storage
