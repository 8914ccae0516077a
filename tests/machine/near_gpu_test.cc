#include "spillway/machine/near_gpu.h"

#include <gtest/gtest.h>

#include "spillway/sys/device_id.h"
#include "tests/sys/fake_nodes.h"

namespace spillway::machine {
namespace {

TEST(NearGpu, IsTheNodeThatTheKernelNames) {
  testing::FakeNodes machine;
  machine.write("sys/bus/pci/devices/0000:6b:00.0/numa_node", "1\n");  // of the fake driver's second GPU
  EXPECT_EQ(gpu_node(1, SPILLWAY_FAKE_CUDA, machine.root()), 1);
  EXPECT_EQ(gpu_node(0, SPILLWAY_FAKE_CUDA, machine.root()), std::nullopt);
  EXPECT_EQ(gpu_node(2, SPILLWAY_FAKE_CUDA, machine.root()), std::nullopt);
  EXPECT_EQ(gpu_node(-1, SPILLWAY_FAKE_CUDA, machine.root()), std::nullopt);
  EXPECT_EQ(gpu_node(0, "libno-driver-here.so", machine.root()), std::nullopt);
}

TEST(NearGpu, DrivesByAnotherNodeAreFar) {
  testing::FakeNodes machine;
  const std::filesystem::path place = machine.root();
  machine.write("sys/devices/pci0000:00/0000:00:01.0/numa_node", "1\n");
  machine.write("sys/devices/pci0000:00/0000:00:01.0/block/drive/dev", "");
  machine.write("sys/dev/block/none", "");
  EXPECT_TRUE(remote_drives({{place}}, 0, machine.root()).empty()) << "of which nothing is known";
  const auto number = sys::to_string(sys::device_of(place));
  std::filesystem::create_symlink(place / "sys/devices/pci0000:00/0000:00:01.0/block/drive",
                                  place / "sys/dev/block" / number);
  EXPECT_TRUE(remote_drives({{place}}, 1, machine.root()).empty());
  const auto remote = remote_drives({{place}}, 0, machine.root());
  EXPECT_EQ(remote, (std::vector<RemoteDrive>{{place, 1}}));
  const auto words = words_of(remote.front(), 3, 0);
  EXPECT_NE(words.find("is by NUMA node 1, and cuda:3 is by node 0"), std::string::npos) << words;
}

}  // namespace
}  // namespace spillway::machine
