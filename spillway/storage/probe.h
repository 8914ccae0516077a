// What a storage path can do, found out before a volume is made on it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/sys/device_id.h"

namespace spillway::storage {

struct Probe {
  bool direct = false;         ///< a volume there is used with O_DIRECT
  std::string direct_refusal;  ///< why not; empty when it is
  Bytes direct_alignment =
      0;  ///< what O_DIRECT asks there, where that is too much for it to be used; 0: it is not that
  Bytes memory_alignment = 1;  ///< of addresses; 1 without O_DIRECT
  Bytes offset_alignment = 1;  ///< of offsets and lengths
  Bytes preferred_block = 0;   ///< what file system or drive would rather move at once; 0: it does not say
  std::string file_system;     ///< "ext4", "nfs4", "fuse.sshfs"; "block device"; "unknown"
  bool remote = false;         ///< on another machine, as far as can be seen
  Bytes free = 0;              ///< bytes that can still be written there; of a block device its size
  sys::DeviceId device;        ///< what processes that use it share
};

/// What a person should know before a path lies there, each after the path's name: "is on tmpfs, which has no O_DIRECT:
/// it is used through the page cache, which takes memory that the plan does not count".
[[nodiscard]] std::vector<std::string> remarks(const Probe& found);

/// Probes a directory, in which a file is made and removed again, or a block device, which is only read. Throws
/// Error(bad_input) when it is missing, neither, or may not be used so.
[[nodiscard]] Probe probe(const std::filesystem::path& path);
/// Probes a file that is there, at least 128 KiB long, which is only read.
[[nodiscard]] Probe probe_file(const std::filesystem::path& path);

}  // namespace spillway::storage
