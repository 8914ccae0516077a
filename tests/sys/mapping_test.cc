#include "spillway/sys/mapping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>

#include "tests/sys/failing.h"

namespace spillway::sys {
namespace {

TEST(MappingTest, IsAlignedAndZeroed) {
  for (const Bytes alignment : {4 * KiB, 64 * KiB, 2 * MiB}) {
    std::byte* data = map_memory(3 * MiB, alignment);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % alignment, 0U);
    const std::span<std::byte> all(data, 3 * MiB);
    EXPECT_TRUE(std::all_of(all.begin(), all.end(), [](std::byte byte) { return byte == std::byte{0}; }));
    unmap_memory(data, 3 * MiB);
  }
}

TEST(MappingTest, PopulateKeepsContents) {
  const Mapping memory(64 * KiB);
  memory.span()[5000] = std::byte{7};
  EXPECT_TRUE(populate(memory.span()));
  EXPECT_EQ(memory.span()[5000], std::byte{7});
  EXPECT_TRUE(populate({}));
}

TEST(MappingTest, AnImpossibleSizeIsRefused) {
  for (const Bytes size : {Bytes{1} << 60, std::numeric_limits<Bytes>::max()}) {
    errno = 0;
    EXPECT_EQ(map_memory(size, 2 * MiB), nullptr);
    EXPECT_EQ(errno, ENOMEM);
  }
  EXPECT_ERROR(Mapping{Bytes{1} << 60}, ErrorCode::does_not_fit, "of memory");
}

}  // namespace
}  // namespace spillway::sys
