#include "spillway/sys/pci.h"

#include <gtest/gtest.h>

#include "tests/sys/fake_nodes.h"

namespace spillway::sys {
namespace {

TEST(Pci, ADeviceIsNearestToTheNodeThatTheKernelNames) {
  testing::FakeNodes machine;
  machine.write("sys/bus/pci/devices/0000:65:00.0/numa_node", "1\n");
  machine.write("sys/bus/pci/devices/0000:66:00.0/numa_node", "-1\n");
  machine.write("sys/bus/pci/devices/0000:67:00.0/numa_node", "what\n");
  EXPECT_EQ(pci_node("0000:65:00.0", machine.root()), 1);
  EXPECT_EQ(pci_node("0000:66:00.0", machine.root()), std::nullopt);  // a machine of one node
  EXPECT_EQ(pci_node("0000:67:00.0", machine.root()), std::nullopt);
  EXPECT_EQ(pci_node("0000:68:00.0", machine.root()), std::nullopt);
}

/// sysfs as a machine with two sockets has it: by number a link into the tree of devices.
TEST(Pci, ADriveIsNearestToTheNodeOfWhatItIsAttachedTo) {
  testing::FakeNodes machine;
  const std::string bus = "sys/devices/pci0000:60/0000:60:03.0/0000:65:00.0/";
  machine.write(bus + "numa_node", "1\n");
  machine.write("sys/devices/pci0000:60/0000:60:03.0/numa_node", "7\n");  // the bridge: it is asked no more
  machine.write(bus + "nvme/nvme0/nvme0n1/dev", "259:0\n");
  machine.write(bus + "nvme/nvme0/nvme0n1/nvme0n1p1/partition", "1\n");
  machine.write("sys/devices/virtual/block/md0/dev", "9:0\n");
  machine.write("sys/dev/block/none", "");
  const auto link = [&](const std::string& to, const char* number) {
    std::filesystem::create_symlink(std::filesystem::path(machine.root()) / to,
                                    std::filesystem::path(machine.root()) / "sys/dev/block" / number);
  };
  link(bus + "nvme/nvme0/nvme0n1", "259:0");
  link(bus + "nvme/nvme0/nvme0n1/nvme0n1p1", "259:1");
  link("sys/devices/virtual/block/md0", "9:0");
  EXPECT_EQ(drive_node("259:0", machine.root()), 1);
  EXPECT_EQ(drive_node("259:1", machine.root()), 1);
  EXPECT_EQ(drive_node("9:0", machine.root()), std::nullopt);  // of several drives, or none
  EXPECT_EQ(drive_node("8:0", machine.root()), std::nullopt);
}

}  // namespace
}  // namespace spillway::sys
