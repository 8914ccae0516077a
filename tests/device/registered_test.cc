// Memory that is pinned for a GPU while an object lives.
#include "spillway/device/registered.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "spillway/base/error.h"
#include "tests/device/pretended.h"

namespace spillway::device {
namespace {

std::unique_ptr<Device> pretended() {
  return make_cuda({.library = kPretended});
}

// The driver refuses a range that it knows already, so the second one shows that the first is known, or gone.
TEST(Registered, IsKnownToTheDriverForAsLongAsItLives) {
  std::vector<std::byte> memory(1 << 16);
  std::optional<Registered> one(std::in_place, pretended(), memory);
  EXPECT_THROW(Registered(pretended(), memory), Error);
  one.reset();
  EXPECT_NO_THROW(Registered(pretended(), memory));
}

TEST(Registered, ARefusalGivesTheReason) {
  const Setting none("FAKE_CUDA_REGISTERS", "0");
  std::vector<std::byte> memory(1 << 16);
  try {
    const Registered refused(pretended(), memory);
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
