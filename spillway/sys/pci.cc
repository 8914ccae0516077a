#include "spillway/sys/pci.h"

#include <fstream>

namespace spillway::sys {

std::optional<int> pci_node(const std::string& address, const std::string& root) {
  std::ifstream file(root + "/sys/bus/pci/devices/" + address + "/numa_node");
  int node = -1;
  if (!(file >> node) || node < 0) return std::nullopt;
  return node;
}

}  // namespace spillway::sys
