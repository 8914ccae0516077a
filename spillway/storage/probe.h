// What a storage path can do, found out before a volume is made on it.
#pragma once

#include <filesystem>
#include <string>

#include "spillway/base/bytes.h"
#include "spillway/sys/device_id.h"

namespace spillway::storage {

struct Probe {
  bool direct = false;         ///< a volume there is used with O_DIRECT
  std::string direct_refusal;  ///< why not; empty when it is
  Bytes memory_alignment = 1;  ///< of addresses; 1 without O_DIRECT
  Bytes offset_alignment = 1;  ///< of offsets and lengths
  Bytes preferred_block = 0;   ///< what file system or drive would rather move at once; 0: it does not say
  std::string file_system;     ///< "ext4", "nfs4", "fuse.sshfs"; "block device"; "unknown"
  bool remote = false;         ///< on another machine, as far as can be seen
  Bytes free = 0;              ///< bytes that can still be written there; of a block device its size
  sys::DeviceId device;        ///< what processes that use it share
};

/// Of a directory, in which a file is made and removed again, or of a block device, which is only read. Throws
/// Error(bad_input) when it is missing, neither, or may not be used so.
[[nodiscard]] Probe probe(const std::filesystem::path& path);

}  // namespace spillway::storage
