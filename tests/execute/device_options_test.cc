// The device that a run's options name, and who gives it the work of passes.
#include "spillway/execute/device_options.h"

#include <gtest/gtest.h>

#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

TEST(DeviceOptions, AGpuIsNamedByItsNumber) {
  EXPECT_EQ(gpu_of("cuda:0"), 0);
  EXPECT_EQ(gpu_of("cuda:12"), 12);
  for (const auto* name : {"simulated", "cuda", "cuda:", "cuda:1x", "cuda:x"}) EXPECT_FALSE(gpu_of(name)) << name;
}

TEST(DeviceOptions, WhatIsNoDeviceIsRefusedWithThoseThatThereAre) {
  for (const auto* name : {"cpu", "cuda:x", "tpu"}) {
    EXPECT_ERROR(static_cast<void>(open_device({.name = name})), ErrorCode::bad_input,
                 "there are cpu, simulated and cuda:N");
  }
}

TEST(DeviceOptions, TheCallerComputesUnlessThereIsAQueue) {
  DeviceOptions options;
  options.simulated.memory = MiB;
  const auto alone = open_device(options);
  ASSERT_NE(alone.device, nullptr);

  device::Simulated* told = nullptr;
  device::Stream stream = 0;
  options.queue = [&](device::Simulated& device, device::Stream of) {
    told = &device;
    stream = of;
  };
  const auto queued = open_device(options);
  EXPECT_EQ(queued.device.get(), told);
  EXPECT_EQ(queued.stream, stream);
}

}  // namespace
}  // namespace spillway::execute
