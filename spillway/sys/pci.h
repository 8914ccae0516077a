// Where devices and drives are attached.
#pragma once

#include <optional>
#include <string>

namespace spillway::sys {

/// The NUMA node that a PCI device is nearest to, by its address ("0000:65:00.0"); none where the kernel does not
/// say. `root` is "" but for tests.
[[nodiscard]] std::optional<int> pci_node(const std::string& address, const std::string& root = "");

/// The NUMA node of a drive, by its number ("259:0"), or of a partition.
[[nodiscard]] std::optional<int> drive_node(const std::string& number, const std::string& root = "");

}  // namespace spillway::sys
