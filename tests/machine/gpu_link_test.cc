#include "spillway/machine/gpu_link.h"

#include <gtest/gtest.h>

#include "spillway/base/error.h"
#include "spillway/device/simulated.h"
#include "spillway/machine/profile_json.h"
#include "tests/device/fake_driver.h"

namespace spillway::machine {
namespace {

constexpr LinkOptions kShort{.seconds = 0.02, .memory = 2 * MiB, .piece = 512 * KiB};

void expect_within(double rate, double most) {
  EXPECT_GT(rate, 0);
  EXPECT_LE(rate, most * 1.01);
}

TEST(GpuLink, IsNoFasterThanTheDevicesLinkInEitherDirection) {
  for (const bool registers : {true, false}) {
    const auto device = device::make_simulated({.to_device = 4e8, .from_device = 1e8, .registers = registers});
    const auto links = measure_links(*device, kShort);
    ASSERT_EQ(links.size(), 1U);
    expect_within(links[0].to_gpu_bytes_per_second, 4e8);
    expect_within(links[0].from_gpu_bytes_per_second, 1e8);
    expect_within(links[0].to_gpu_bytes_per_second_together, 4e8);
    expect_within(links[0].from_gpu_bytes_per_second_together, 1e8);
  }
}

TEST(GpuLink, OfADeviceWithoutRoomIsRefused) {
  const auto device = device::make_simulated({.memory = 1 * MiB});
  EXPECT_THROW(static_cast<void>(measure_links(*device, kShort)), Error);
}

TEST(GpuLink, EveryGpuIsMeasuredAndReadAgain) {
  auto gpus = measure_gpus(kShort, device::kFakeDriver);
  ASSERT_EQ(gpus.size(), 2U);
  EXPECT_EQ(gpus[1].name, "1");
  EXPECT_EQ(gpus[1].memory, 64 * MiB);
  for (auto& gpu : gpus) {
    EXPECT_GT(gpu.to_gpu_bytes_per_second, 0);
    EXPECT_GT(gpu.from_gpu_bytes_per_second, 0);
    gpu.flops_per_second = 1e12;  // PyTorch's to say
  }
  Profile profile{.cores = 1, .dram_total = 1 * GiB, .dram_available = 1 * GiB};
  profile.gpus = gpus;
  EXPECT_EQ(from_json(to_json(profile), "test").gpus, gpus);
  EXPECT_TRUE(measure_gpus(kShort, "libno-driver-here.so").empty());
}

TEST(GpuLink, ANodeThatIsNamedTwiceInAProfileIsRefused) {
  Profile profile{.cores = 1, .dram_total = 1 * GiB, .dram_available = 1 * GiB};
  GpuProfile gpu{.memory = 1 * GiB, .flops_per_second = 1};
  gpu.to_gpu_bytes_per_second = gpu.from_gpu_bytes_per_second = 1;
  gpu.links = {{.node = 3, .to_gpu_bytes_per_second = 1}, {.node = 3}};
  profile.gpus = {gpu};
  try {
    static_cast<void>(from_json(to_json(profile), "test"));
    FAIL() << "read";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("gpus[0].links[1].node"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace spillway::machine
