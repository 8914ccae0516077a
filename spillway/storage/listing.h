// Which volumes a storage directory or device holds, whoever they belong to: how the shards of a run are matched to the
// processes that can reach them.
#pragma once

#include <filesystem>
#include <vector>

#include "spillway/storage/superblock.h"

namespace spillway::storage {

struct ListedVolume {
  std::filesystem::path file;
  Superblock superblock;
};

/// The volumes in a directory, sorted by name, or the one on a block device. What is no volume that this build reads is
/// left out, and so is everything of a place that does not exist, and a volume that another process removes meanwhile.
/// Takes no lock and writes nothing. Throws Error(io) where the file system does not answer.
[[nodiscard]] std::vector<ListedVolume> list_volumes(const std::filesystem::path& place);

}  // namespace spillway::storage
