#include "spillway/sys/mapping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <limits>

#include "spillway/sys/file.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

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

TEST(MappingTest, BytesOfAFileStandInAddressesThatWereReserved) {
  const testing::TemporaryDirectory directory;
  const File file = nameless_file(directory.path());
  file.reserve(128 * KiB);
  std::byte* data = reserve_addresses(2 * MiB, 2 * MiB);
  ASSERT_NE(data, nullptr);
  const std::span<std::byte> all(data, 2 * MiB), part = all.subspan(64 * KiB, 64 * KiB);
  ASSERT_TRUE(allow_access(all.first(64 * KiB)));
  ASSERT_TRUE(map_file(part, file.fd(), 32 * KiB));
  ASSERT_TRUE(populate(part));
  part[5000] = std::byte{9};
  all[0] = std::byte{8};
  std::array<std::byte, 1> read{};
  file.read(read, 32 * KiB + 5000);
  EXPECT_EQ(read[0], std::byte{9});
  const auto ranges = file_ranges();
  const auto found = std::ranges::find(ranges, part.data(), &FileRange::begin);
  ASSERT_NE(found, ranges.end());
  EXPECT_EQ(found->end, part.data() + part.size());
  EXPECT_EQ(found->in_memory, part.size());
  EXPECT_TRUE(std::ranges::none_of(ranges, [&](const FileRange& it) { return it.begin == data; }));
  unmap_memory(data, 2 * MiB);
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
