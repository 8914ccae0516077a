#include "spillway/sys/sparse_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/sys/temporary.h"

namespace spillway::sys {
namespace {

using Contents = std::vector<std::byte>;

Contents drawn(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  Contents out(count);
  std::ranges::generate(out, [&] { return static_cast<std::byte>(random() % 255 + 1); });
  return out;
}

class SparseBytesTest : public ::testing::Test {
 protected:
  /// Writes to both, so that one can be held against the other.
  void write(SparseBytes& sparse, Bytes offset, std::size_t count, std::uint32_t seed) {
    const auto bytes = drawn(count, seed);
    sparse.write(bytes, offset);
    expected_.resize(std::max<std::size_t>(expected_.size(), offset + count));
    std::ranges::copy(bytes, expected_.begin() + static_cast<std::ptrdiff_t>(offset));
  }

  ::spillway::testing::TemporaryDirectory directory_;
  Contents expected_;
};

TEST_F(SparseBytesTest, HoldsWhatWasWrittenLastAndZerosElsewhere) {
  SparseBytes sparse;
  write(sparse, 40'000, 100'000, 1);
  write(sparse, 3, 5, 2);
  write(sparse, 60'001, 10'000, 3);
  write(sparse, 1 * MiB, 1, 4);
  EXPECT_EQ(sparse.size(), 1 * MiB + 1);
  EXPECT_EQ(sparse.whole(), expected_);
}

TEST_F(SparseBytesTest, AFileComesBackAsItWasSaved) {
  SparseBytes sparse;
  write(sparse, 5 * MiB + 17, 2 * MiB, 1);
  write(sparse, 512, 1000, 2);
  const auto path = directory_.path() / "saved";
  sparse.save(path);
  const File file(path);
  EXPECT_EQ(file.size(), expected_.size());
  EXPECT_LT(file.reserved(), 3 * MiB) << "holes were written";
  EXPECT_EQ(SparseBytes(file).whole(), expected_);
  Contents read(expected_.size());
  file.read(read, 0);
  EXPECT_EQ(read, expected_);
}

TEST_F(SparseBytesTest, SavingLeavesNothingOfAnEarlierFile) {
  const auto path = directory_.path() / "saved";
  SparseBytes large, small;
  large.write(drawn(3 * MiB, 1), 0);
  write(small, 100'000, 10, 2);
  large.save(path);
  small.save(path);
  EXPECT_EQ(SparseBytes(File(path)).whole(), expected_);
}

TEST_F(SparseBytesTest, ACopyIsOnesOwn) {
  SparseBytes sparse;
  write(sparse, 0, 100, 1);
  SparseBytes copy = sparse;
  copy.write(drawn(100, 2), 50);
  EXPECT_EQ(sparse.whole(), expected_);
}

}  // namespace
}  // namespace spillway::sys
