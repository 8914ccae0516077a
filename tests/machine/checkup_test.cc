#include "spillway/machine/checkup.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sys/temporary.h"

namespace spillway::machine {
namespace {

const Finding& named(const std::vector<Finding>& findings, const std::string& what) {
  return *std::ranges::find(findings, what, &Finding::what);
}

TEST(CheckupTest, LooksAtEverythingAndLeavesNothing) {
  const testing::TemporaryDirectory directory;
  const std::vector<std::filesystem::path> places = {directory.path()};
  const auto findings = checkup(places);
  for (const char* what :
       {"io_uring", "registered memory", "huge pages", "memory", "NUMA nodes", "placing memory", "GPU driver"}) {
    ASSERT_NE(std::ranges::find(findings, what, &Finding::what), findings.end()) << what;
  }
  for (const Finding& finding : findings) EXPECT_FALSE(finding.words.empty()) << finding.what;
  EXPECT_EQ(named(findings, "memory").state, Finding::State::good);
  EXPECT_NE(findings.back().words.find("free"), std::string::npos) << findings.back().words;
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(CheckupTest, APlaceThatIsMissingIsAFinding) {
  const std::vector<std::filesystem::path> places = {"/no/such/place"};
  const auto findings = checkup(places);
  EXPECT_EQ(findings.back().what, "storage /no/such/place");
  EXPECT_EQ(findings.back().state, Finding::State::missing);
}

}  // namespace
}  // namespace spillway::machine
