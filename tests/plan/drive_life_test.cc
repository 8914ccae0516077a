#include "spillway/plan/drive_life.h"

#include <gtest/gtest.h>

#include "spillway/plan/settings.h"

namespace spillway::plan {
namespace {

TEST(DriveLife, IsWhatItIsRatedForByWhatADayWrites) {
  const auto life = *drive_life(10'000'000'000, 10, 86'400'000'000'000);
  EXPECT_EQ(life.written_per_day, 86'400'000'000'000U);
  EXPECT_DOUBLE_EQ(life.days, 1);
  EXPECT_FALSE(life.assumed);
}

TEST(DriveLife, AUsualDriveIsSupposedAndThatIsSaid) {
  const auto life = *drive_life(1'000'000'000, 1, std::nullopt);
  EXPECT_TRUE(life.assumed);
  EXPECT_EQ(life.rated, kUsualEndurance);
  EXPECT_NEAR(life.days, 600e12 / 86.4e12, 1e-9);
}

TEST(DriveLife, NothingIsSaidOfADriveThatIsNotWritten) {
  EXPECT_FALSE(drive_life(0, 1, std::nullopt).has_value());
  EXPECT_FALSE(drive_life(1, 0, std::nullopt).has_value());
}

TEST(DriveLife, ComesWithTheSettingsOfAPath) {
  const auto budget = make_budget({.dram_budget = 1000, .storage = {{.capacity = 5, .endurance = 7}, {.capacity = 5}}});
  EXPECT_EQ(budget.paths.at(0).endurance, 7U);
  EXPECT_EQ(budget.paths.at(1).endurance, std::nullopt);
}

}  // namespace
}  // namespace spillway::plan
