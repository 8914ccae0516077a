// What makes the bytes of a file or a device a volume. Each of these may be interrupted anywhere.
#pragma once

#include "spillway/base/bytes.h"
#include "spillway/storage/superblock.h"
#include "spillway/storage/volume.h"
#include "spillway/sys/file.h"

namespace spillway::storage {

/// The superblock of what was asked for.
[[nodiscard]] Superblock wanted(const VolumeOptions& options);
/// The bytes of a volume from its first to its last.
[[nodiscard]] Bytes volume_bytes(Bytes metadata, Bytes capacity) noexcept;
/// Whether a volume serves as it is when nothing of its contents is wanted.
[[nodiscard]] bool serves(const SuperblockPair& there, const VolumeOptions& options);

/// Empties the metadata area, writes what has to be written once, and only then the superblocks. `prewritten` says that
/// every byte of it was written before.
void prepare(const sys::File& file, const VolumeOptions& options, bool prewritten);
/// Makes what is there, if anything, a volume of the run that holds nothing. While that goes on the superblock says so,
/// so that nobody takes half-erased records for its contents. The space must be there.
void refit(const sys::File& file, const SuperblockPair& there, const VolumeOptions& options);
/// What a volume that is there becomes with the capacity that was asked for.
[[nodiscard]] Superblock grown(const Superblock& there, const VolumeOptions& options);
/// Prewrites, when asked, what a volume will have more of. Its space is there and durable afterwards; the volume is the
/// one it was until its superblocks are those of `grown`.
void prepare_more(const sys::File& file, const Superblock& there, const VolumeOptions& options);

}  // namespace spillway::storage
