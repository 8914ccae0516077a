// Every instruction set gives the same numbers, which are those of XXH3 itself.
#include "spillway/storage/checksum.h"

#include <gtest/gtest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "spillway/storage/checksum_avx2.h"

namespace spillway::storage {
namespace {

TEST(Checksum, IsXxh3OnEveryInstructionSet) {
  std::vector<std::byte> bytes(70'000);
  std::uint32_t word = 1;
  for (auto& byte : bytes) byte = static_cast<std::byte>((word = word * 1664525 + 1013904223) >> 24);
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") != 0;
#else
  const bool avx2 = true;  // compiled for the baseline
#endif
  for (const std::size_t size : {0, 1, 16, 17, 128, 240, 241, 1024, 4096, 65'536, 69'999}) {
    for (const std::uint64_t seed : {0ULL, 1ULL, 0x123456789ABCDEFULL}) {
      for (const std::size_t from : {0, 1}) {
        const auto expected = XXH3_64bits_withSeed(bytes.data() + from, size, seed);
        EXPECT_EQ(checksum({bytes.data() + from, size}, seed), expected) << size << " bytes";
        if (!avx2) continue;
        EXPECT_EQ(checksum_avx2(bytes.data() + from, size, seed), expected) << size << " bytes";
      }
    }
  }
}

TEST(Checksum, OfPartsIsThatOfTheWhole) {
  std::vector<std::byte> bytes(300'000);
  std::uint32_t word = 7;
  const auto next = [&] { return (word = word * 1664525 + 1013904223) >> 8; };
  for (auto& byte : bytes) byte = static_cast<std::byte>(next());
  for (int round = 0; round < 50; ++round) {
    const std::size_t size = next() % bytes.size();
    RunningChecksum running;
    for (std::size_t at = 0; at < size;) {
      const auto part = std::min<std::size_t>(size - at, next() % (round % 2 == 0 ? 100 : 100'000));
      running.add({bytes.data() + at, part});
      at += part;
    }
    EXPECT_EQ(running.value(), checksum({bytes.data(), size}, 0)) << size;
  }
}

}  // namespace
}  // namespace spillway::storage
