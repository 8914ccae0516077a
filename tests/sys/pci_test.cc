#include "spillway/sys/pci.h"

#include <gtest/gtest.h>

#include "tests/sys/pretended_nodes.h"

namespace spillway::sys {
namespace {

TEST(Pci, ADeviceIsNearestToTheNodeThatTheKernelNames) {
  testing::PretendedNodes machine;
  machine.write("sys/bus/pci/devices/0000:65:00.0/numa_node", "1\n");
  machine.write("sys/bus/pci/devices/0000:66:00.0/numa_node", "-1\n");
  machine.write("sys/bus/pci/devices/0000:67:00.0/numa_node", "what\n");
  EXPECT_EQ(pci_node("0000:65:00.0", machine.root()), 1);
  EXPECT_EQ(pci_node("0000:66:00.0", machine.root()), std::nullopt);  // a machine of one node
  EXPECT_EQ(pci_node("0000:67:00.0", machine.root()), std::nullopt);
  EXPECT_EQ(pci_node("0000:68:00.0", machine.root()), std::nullopt);
}

}  // namespace
}  // namespace spillway::sys
