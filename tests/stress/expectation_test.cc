// What the driver of stress expects after processes that began anew and died, beside others.
#include "tests/stress/expectation.h"

#include <gtest/gtest.h>

namespace spillway::stress {
namespace {

class Expected : public ::testing::Test {
 protected:
  void begins(std::uint64_t process, Opening opening) { expected_.begins(process, process, opening, std::nullopt); }
  void tells(const std::string& line) { expected_.hears(parse_message(line)); }

  static Scenario scenario() {
    Scenario out;
    out.shape = {.layers = 1, .chunk_elements = 4096};
    return out;
  }
  Expectation expected_{scenario(), 1};
};

TEST_F(Expected, WhatBeganAnewAndCommitsIsDoneWithIt) {
  begins(1, Opening::anew);
  EXPECT_TRUE(expected_.is_mixed());
  tells("1 opened none");
  EXPECT_TRUE(expected_.is_mixed());
  tells("1 commit 0");
  EXPECT_FALSE(expected_.is_mixed());
}

/// It may have taken the volumes from the one that made commits, and died before the checkpoints of that were removed.
TEST_F(Expected, CommitsOfAnotherDoNotEndWhatBeganAnew) {
  begins(1, Opening::anew);
  begins(2, Opening::anew);
  for (const auto* line : {"1 opened none", "1 commit 0", "1 saving 0", "1 saved 0"}) tells(line);
  expected_.ended(1);
  expected_.ended(2);  // it was killed
  EXPECT_TRUE(expected_.is_mixed());
  begins(3, Opening::anew);
  tells("3 opened none");
  EXPECT_TRUE(expected_.is_mixed());
  tells("3 commit 0");
  EXPECT_FALSE(expected_.is_mixed());
  EXPECT_EQ(expected_.wrong(), "");
}

TEST_F(Expected, WhatWasRefusedItsFirstVolumeHasChangedNothing) {
  begins(1, Opening::go_on);
  tells("1 opened none");
  begins(2, Opening::anew);
  tells("2 failed bad_input /tmp/a/1/spillway.volume is in use by another run; end that run");
  EXPECT_TRUE(expected_.is_mixed());
  tells("2 failed bad_input /tmp/a/0/spillway.volume is in use by another run; end that run");
  EXPECT_FALSE(expected_.is_mixed());
}

}  // namespace
}  // namespace spillway::stress
