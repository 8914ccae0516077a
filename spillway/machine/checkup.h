// What this system lets the engine use, each with the reason where it does not.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace spillway::machine {

struct Finding {
  enum class State {
    good,     ///< used as it is
    lesser,   ///< done in another way, slower or with a restriction
    missing,  ///< not here; what needs it is refused
  };

  std::string what;  ///< "io_uring", "storage /mnt/ssd"
  State state = State::good;
  std::string words;  ///< what was found, and what would change it

  bool operator==(const Finding&) const = default;
};

/// io_uring, registered memory, huge pages, NUMA nodes and DRAM of this process, the GPU driver, and each of `places`
/// (directories or block devices) as a storage path. Files are made in the directory for temporary files and in
/// `places`, and removed. Nothing is thrown for what is found: a place that cannot be used is a finding, too.
[[nodiscard]] std::vector<Finding> checkup(std::span<const std::filesystem::path> places);

}  // namespace spillway::machine
