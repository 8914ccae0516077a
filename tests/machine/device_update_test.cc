#include "spillway/machine/device_update.h"

#include <gtest/gtest.h>

#include "spillway/device/simulated.h"

namespace spillway::machine {
namespace {

TEST(DeviceUpdate, HasARateWhereThereIsMemory) {
  const auto device = device::make_simulated({.seed = 3});
  EXPECT_EQ(device_update_rate(*device, 0.01), 0);
  static_cast<void>(device->allocate(4 * MiB));
  EXPECT_GT(device_update_rate(*device, 0.01), 0);
  for (const auto moments : {kernels::Moments::bf16, kernels::Moments::int8}) {
    EXPECT_GT(device_update_rate(*device, 0.01, {.form = {kernels::Weights::fp16, moments}}), 0);
  }
}

}  // namespace
}  // namespace spillway::machine
