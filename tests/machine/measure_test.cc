#include "spillway/machine/measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "spillway/machine/measure_device.h"
#include "spillway/sys/file.h"
#include "tests/needs.h"
#include "tests/sys/failing.h"
#include "tests/sys/loop_device.h"
#include "tests/sys/temporary.h"

namespace spillway::machine {
namespace {

class MeasureDeviceTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string first_bytes(const testing::LoopDevice& loop) const {
    std::string out(8, ' ');
    sys::File(loop.path()).read({reinterpret_cast<std::byte*>(out.data()), out.size()}, 0);
    return out;
  }
  testing::TemporaryDirectory directory_;
};

TEST_F(MeasureDeviceTest, OnlyReads) {
  const testing::LoopDevice loop(directory_.path(), 96 * MiB, 4096);
  REQUIRE_LOOP_DEVICE(loop);
  {
    const sys::File device(loop.path(), {.write = true});
    device.write(std::as_bytes(std::span("precious", 8)), 0);
    device.sync();
  }
  const sys::File claim(loop.path(), {.exclusive = true});  // in use
  const PathProfile found = measure_device(loop.path(), 0);
  EXPECT_GT(found.read_bytes_per_second, 0);
  EXPECT_EQ(found.write_bytes_per_second, 0);
  EXPECT_EQ(found.mixed_bytes_per_second, 0);
  EXPECT_EQ(first_bytes(loop), "precious");
}

TEST_F(MeasureDeviceTest, ASmallOneStaysUnknown) {
  const testing::LoopDevice loop(directory_.path(), 63 * MiB);
  REQUIRE_LOOP_DEVICE(loop);
  EXPECT_EQ(measure_device(loop.path(), 0), PathProfile{});
}

TEST_F(MeasureDeviceTest, OneOfLargeBlocksStaysUnknown) {
  const testing::LoopDevice loop(directory_.path(), 96 * MiB, 16384);
  SPILLWAY_NEEDS(loop, loop.ready(), "no devices of such blocks: " << loop.reason());
  EXPECT_EQ(measure_device(loop.path(), 0), PathProfile{});
}

TEST_F(MeasureDeviceTest, RefusesWhatIsMissing) {
  EXPECT_ERROR(std::ignore = measure_device(directory_.path() / "sdz", 0), ErrorCode::bad_input, "sdz");
}

TEST_F(MeasureDeviceTest, OneDeviceTwiceIsShared) {
  const testing::LoopDevice loop(directory_.path(), 96 * MiB, 4096);
  REQUIRE_LOOP_DEVICE(loop);
  const std::array places = {loop.path(), loop.path()};
  const Profile profile = measure(places, 0);
  ASSERT_EQ(profile.paths.size(), 2U);
  EXPECT_EQ(profile.paths[0].name, "0");
  EXPECT_EQ(profile.paths[1].name, "1");
  EXPECT_GT(profile.paths[0].read_bytes_per_second, 0);
  EXPECT_EQ(profile.paths[0].read_bytes_per_second, profile.paths[1].read_bytes_per_second);
}

}  // namespace
}  // namespace spillway::machine
