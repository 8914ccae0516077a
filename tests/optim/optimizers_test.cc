// What every descriptor promises to those that ask it.
#include "spillway/optim/optimizers.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "spillway/base/error.h"
#include "spillway/optim/step.h"
#include "tests/optim/expect_error.h"

namespace spillway::optim {
namespace {

TEST(Optimizers, AreFoundByName) {
  std::set<std::string> names;
  for (const auto* it : all()) {
    EXPECT_EQ(&parse(it->name), it);
    EXPECT_TRUE(names.insert(it->name).second) << it->name;
  }
  expect_error(ErrorCode::bad_input, {"optimizer is adafactor", "adamw, adam, lion, sgd"},
               [] { (void)parse("adafactor"); });
}

TEST(Optimizers, SayWhatOthersRelyOn) {
  for (const auto* it : all()) {
    SCOPED_TRACE(it->name);
    ASSERT_GT(it->hyperparameters.size(), kWeightDecay);
    EXPECT_STREQ(it->hyperparameters[kLearningRate].name, "learning_rate");
    EXPECT_STREQ(it->hyperparameters[kWeightDecay].name, "weight_decay");
    EXPECT_LE(it->fields.size(), 2U);
    EXPECT_GE(it->fields.size(), 1U);
    EXPECT_FALSE(it->formats.empty());
    EXPECT_EQ(it->scope == Scope::matrix, it->matrix != nullptr);
    EXPECT_EQ(it->scope == Scope::matrix, it->others != nullptr);
    EXPECT_EQ(&it->of(true), it);
    EXPECT_EQ(it->of(false).scope, Scope::element) << "what is no matrix is updated by elements";
    const auto others = it->others == nullptr ? 0 : it->others->hyperparameters.size();
    EXPECT_LE(it->hyperparameters.size() + others, kMostValues);
    for (const auto& each : it->hyperparameters) {
      EXPECT_GE(each.value, each.least) << each.name;
      EXPECT_LT(each.value, each.below) << each.name;
      EXPECT_LT(each.slot, static_cast<int>(ElementValues().size())) << each.name;
      EXPECT_TRUE(it->scope == Scope::matrix || each.slot >= 0) << each.name << " reaches no kernel";
    }
  }
}

}  // namespace
}  // namespace spillway::optim
