#include "tests/storage/commit_model.h"

#include <gtest/gtest.h>

#include "tests/nightly.h"

namespace spillway::storage::model {
namespace {

TEST(CommitModelTest, EveryCutLeavesTheValuesOfARunThatWasNotInterrupted) {
  const unsigned seeds = spillway::testing::few_or(50U, 150U);
  int events = 0;
  for (unsigned seed = 0; seed < seeds; ++seed) {
    Model model({seed, Fault::none, 1 + int(seed % 3), 3 + int(seed % 2)});
    ASSERT_EQ(model.run(), "") << "seed " << seed;
    events += model.events();
  }
  EXPECT_GT(events, static_cast<int>(seeds * 100));
}

class BrokenModelTest : public ::testing::TestWithParam<Fault> {};

TEST_P(BrokenModelTest, IsNoticed) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    Model model({seed, GetParam(), 1 + int(seed % 3), 3 + int(seed % 2)});
    if (!model.run().empty()) return;
  }
  FAIL() << "500 runs did not notice";
}

INSTANTIATE_TEST_SUITE_P(Faults, BrokenModelTest,
                         ::testing::Values(Fault::commit_before_flush, Fault::record_before_flush,
                                           Fault::record_before_commit, Fault::free_before_flush,
                                           Fault::gradient_free_early, Fault::image_in_place, Fault::trusted_slot,
                                           Fault::commit_slot, Fault::old_generation_counts, Fault::free_before_opening,
                                           Fault::opening_before_flush, Fault::write_before_opening,
                                           Fault::back_commit_before_records, Fault::not_pinned));

}  // namespace
}  // namespace spillway::storage::model
