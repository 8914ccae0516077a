#include "spillway/machine/device_rates.h"

#include <gtest/gtest.h>

#include "spillway/base/error.h"
#include "spillway/device/simulated.h"

namespace spillway::machine {
namespace {

TEST(DeviceRates, AreNoFasterThanTheLink) {
  const auto device = device::make_simulated({.to_device = 2e9, .from_device = 1e9});
  const auto found = measure_device_rates(*device, kDeviceRatesMemory, 0.05);
  EXPECT_GT(found.to_device, 0);
  EXPECT_LE(found.to_device, 2e9);
  EXPECT_GT(found.from_device, 0);
  EXPECT_LE(found.from_device, 1e9);
  EXPECT_GT(found.update, 0);
}

TEST(DeviceRates, ARefusedRegistrationIsNoHindrance) {
  const auto device = device::make_simulated({.registers = false});
  EXPECT_GT(measure_device_rates(*device, kDeviceRatesMemory, 0.01).to_device, 0);
}

TEST(DeviceRates, TooLittleMemoryIsOurFault) {
  const auto device = device::make_simulated({});
  EXPECT_THROW(static_cast<void>(measure_device_rates(*device, 1 * MiB)), Error);
}

}  // namespace
}  // namespace spillway::machine
