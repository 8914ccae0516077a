// Directories in which a run may have a file as memory: what can be refused of them before, and how fast that is.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/machine/node_rates.h"

namespace spillway::machine {

struct FileShare {
  std::filesystem::path directory;
  Bytes capacity = 0;  ///< for all that the run has there
};

/// What is known of such a directory.
struct MemoryFile {
  bool in_dram = false;  ///< its bytes are this machine's DRAM, as those of a tmpfs are, and not to be given twice
  std::string notice;    ///< what a person should know of it; empty: nothing
};

/// By directory. Makes a file without a name in each, and nothing else. Throws Error(bad_input) for one that is
/// missing, is no directory, cannot be written or is another's directory, too; Error(does_not_fit) that says what would
/// fit where there is less than is asked; Error(unsupported) for a file system whose bytes cannot be had so. `root`: in
/// place of "/", of what is mounted; for tests.
[[nodiscard]] std::vector<MemoryFile> check_files(const std::vector<FileShare>& asked, const std::string& root = "");

/// Measures what measure_nodes() measures of a node, in a file there of 256 MiB, or of `most` bytes where that is less,
/// but of kCalibrationMemory at least; rates of 0 where so much is not given. Throws what memory::Arena does.
[[nodiscard]] NodeRate measure_file(const FileShare& share, Bytes most, double seconds, const UpdateKind& kind);

}  // namespace spillway::machine
