#include "spillway/storage/zeros.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/storage/file_size_limit.h"
#include "tests/storage/fixture.h"

namespace spillway::storage {
namespace {

using namespace testing;  // NOLINT

class ZerosTest : public ::testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] std::vector<std::byte> contents() const {
    std::vector<std::byte> bytes(file_.size());
    sys::File(file_.path()).read(bytes, 0);
    return bytes;
  }

  TemporaryDirectory directory_;
  sys::File file_{directory_.path() / "file", {.write = true, .create = true, .direct = GetParam()}};
};

TEST_P(ZerosTest, FillsTheRangeAndNothingElse) {
  const sys::Mapping old(16 * MiB);
  std::ranges::fill(old.span(), std::byte{7});
  for (const auto& [begin, end] : {std::pair<Bytes, Bytes>{0, 4 * KiB},
                                   {4 * KiB, 1 * MiB},
                                   {1 * MiB - 4 * KiB, 3 * MiB + 8 * KiB},
                                   {1 * MiB, 16 * MiB},
                                   {2 * MiB, 2 * MiB}}) {
    file_.write(old.span(), 0);
    write_zeros(file_, begin, end);
    const auto found = contents();
    const auto first = found.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = found.begin() + static_cast<std::ptrdiff_t>(end);
    EXPECT_EQ(std::count(found.begin(), first, std::byte{7}), static_cast<std::ptrdiff_t>(begin));
    EXPECT_EQ(std::count(first, last, std::byte{0}), static_cast<std::ptrdiff_t>(end - begin));
    EXPECT_EQ(std::count(last, found.end(), std::byte{7}), static_cast<std::ptrdiff_t>(16 * MiB - end));
  }
}

TEST_P(ZerosTest, TellsOfEveryPiece) {
  std::vector<std::pair<Bytes, Bytes>> steps;
  write_zeros(file_, 1 * MiB, 12 * MiB, [&](Bytes done, Bytes of) { steps.emplace_back(done, of); });
  ASSERT_EQ(steps.size(), 11U);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i], (std::pair<Bytes, Bytes>{(i + 1) * MiB, 11 * MiB}));
  }
}

TEST_P(ZerosTest, AnErrorNamesItsPlace) {
  const FileSizeLimit limit(2 * MiB + 512 * KiB);
  EXPECT_ERROR(write_zeros(file_, 0, 32 * MiB), ErrorCode::does_not_fit, file_.path().string());
}

INSTANTIATE_TEST_SUITE_P(Files, ZerosTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "direct" : "buffered"; });

}  // namespace
}  // namespace spillway::storage
