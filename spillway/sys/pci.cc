#include "spillway/sys/pci.h"

#include <filesystem>
#include <fstream>

namespace spillway::sys {
namespace {

namespace fs = std::filesystem;

std::optional<int> node_in(const fs::path& file) {
  std::ifstream in(file);
  int node = -1;
  if (!(in >> node) || node < 0) return std::nullopt;
  return node;
}

}  // namespace

std::optional<int> pci_node(const std::string& address, const std::string& root) {
  return node_in(fs::path(root + "/sys/bus/pci/devices") / address / "numa_node");
}

/// It lies below the device that it is attached to: .../0000:65:00.0/nvme/nvme0/nvme0n1/nvme0n1p1.
std::optional<int> drive_node(const std::string& number, const std::string& root) {
  std::error_code failure;
  auto at = fs::canonical(root + "/sys/dev/block/" + number, failure);
  const auto top = fs::canonical(root + "/sys", failure);
  for (; !failure && at != top && at.has_relative_path(); at = at.parent_path()) {
    if (fs::exists(at / "numa_node", failure)) return node_in(at / "numa_node");
    failure.clear();
  }
  return std::nullopt;
}

}  // namespace spillway::sys
