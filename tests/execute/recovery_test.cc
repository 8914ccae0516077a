// What was found, taken from a commit and told in a sentence.
#include "spillway/execute/recovery.h"

#include <gtest/gtest.h>

#include <string_view>

#include "spillway/optim/optimizers.h"
#include "spillway/optim/step.h"

namespace spillway::execute {
namespace {

TEST(Recovery, IsTheStepOfACommit) {
  auto update = optim::make_step(optim::adamw, {});
  update.step = 4;
  journal::Commit commit{.step = 7, .previous = 5, .skipped = true, .update = optim::encode(optim::adamw, update)};
  for (const char it : std::string_view("abc")) commit.payload.push_back(static_cast<std::byte>(it));
  Recovery found;
  found.take(commit, optim::adamw);
  EXPECT_TRUE(found.has_step);
  EXPECT_EQ(found.step, 7U);
  EXPECT_EQ(found.applied, 5U) << "the step itself was skipped";
  EXPECT_EQ(found.updates, 4);
  EXPECT_EQ(found.payload, "abc");
}

TEST(Recovery, IsToldInOneSentence) {
  Recovery found;
  EXPECT_EQ(found.words(), "");
  found.has_step = true;
  found.step = 3;
  found.chunks = 10;
  found.seconds = 1.26;
  EXPECT_EQ(found.words(), "recovered step 3 from the storage paths: 10 chunks, in 1.3 s");
  found.replayed = 4;
  found.replayed_steps = 1;
  EXPECT_EQ(found.words(),
            "recovered step 3 from the storage paths: 10 chunks, 4 of them updated again from their gradients, up to "
            "1 time, in 1.3 s");
  found.replayed_steps = 2;
  found.damage = {"a", "b"};
  EXPECT_EQ(found.words(),
            "recovered step 3 from the storage paths: 10 chunks, 4 of them updated again from their gradients, up to "
            "2 times, in 1.3 s; 2 damaged records were passed over, the first is a");
}

TEST(Clocked, AddsToWhatIsThere) {
  double seconds = 5;
  { const Clocked clocked(seconds); }
  EXPECT_GE(seconds, 5);
}

}  // namespace
}  // namespace spillway::execute
