#include "spillway/sys/exchange.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/needs.h"
#include "tests/sys/failing.h"
#include "tests/sys/temporary.h"

namespace spillway::sys {
namespace {

TEST(Exchange, GivesEachNameWhatTheOtherHas) {
  const testing::TemporaryDirectory directory;
  const auto file = directory.path() / "file", folder = directory.path() / "folder";
  std::ofstream(file) << "spill";
  std::filesystem::create_directory(folder);
  SPILLWAY_NEEDS(exchange, exchange(file, folder), directory.path() << ": the file system cannot exchange names");
  EXPECT_TRUE(std::filesystem::is_directory(file));
  EXPECT_EQ(std::filesystem::file_size(folder), 5U);
  EXPECT_ERROR(static_cast<void>(exchange(file, directory.path() / "none")), ErrorCode::bad_input, "exchange");
}

}  // namespace
}  // namespace spillway::sys
