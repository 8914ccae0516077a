// Memory that is pinned for a GPU while an object lives.
#include "spillway/device/registered.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "spillway/base/error.h"
#include "tests/device/fake_driver.h"

namespace spillway::device {
namespace {

std::unique_ptr<Device> fake_device() {
  return make_cuda({.library = kFakeDriver});
}

// The driver refuses a range that it knows already, so the second one shows that the first is known, or gone.
TEST(Registered, IsKnownToTheDriverForAsLongAsItLives) {
  std::vector<std::byte> memory(1 << 16);
  std::optional<Registered> one(std::in_place, fake_device(), memory);
  EXPECT_THROW(Registered(fake_device(), memory), Error);
  one.reset();
  EXPECT_NO_THROW(Registered(fake_device(), memory));
}

TEST(Registered, ARefusalGivesTheReason) {
  const Setting none("FAKE_CUDA_REGISTERS", "0");
  std::vector<std::byte> memory(1 << 16);
  try {
    const Registered refused(fake_device(), memory);
    FAIL() << "registered";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("64.0 KiB of host memory could not be registered with cuda:0"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace spillway::device
