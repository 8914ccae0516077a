// The digest of bytes changes with each of their bits, and with their order.
#include "spillway/execute/step_digests.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::execute {
namespace {

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<std::byte> out(count);
  for (auto& it : out) it = static_cast<std::byte>(random());
  return out;
}

TEST(Digest, IsTheSameWithAnyNumberOfThreads) {
  ThreadPool one(1), three(3);
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, MiB - 1, MiB, MiB + 1, 3 * MiB + 7}) {
    const auto bytes = random_bytes(count);
    EXPECT_EQ(digest(bytes, one), digest(bytes, three)) << count;
  }
}

TEST(Digest, ChangesWithEachBitAndWithTheOrderOfTiles) {
  ThreadPool threads(2);
  std::mt19937_64 random(5);
  auto bytes = random_bytes(2 * MiB + 100);
  const auto whole = digest(bytes, threads);
  for (int i = 0; i < 50; ++i) {
    const auto bit = random() % (8 * bytes.size());
    bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    EXPECT_NE(digest(bytes, threads), whole) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  }
  std::swap_ranges(bytes.begin(), bytes.begin() + MiB, bytes.begin() + MiB);
  EXPECT_NE(digest(bytes, threads), whole);
  bytes.pop_back();
  EXPECT_NE(digest(bytes, threads), whole);
}

}  // namespace
}  // namespace spillway::execute
