// From names to values, to a kernel's arguments, and to a commit's blob and back.
#include "spillway/optim/step.h"

#include <gtest/gtest.h>

#include <cstring>

#include "spillway/base/error.h"
#include "spillway/optim/optimizers.h"
#include "tests/optim/expect_error.h"

namespace spillway::optim {
namespace {

/// Each value another one.
Step some_step(const Descriptor& optimizer) {
  NamedValues named;
  double value = 0.5;
  for (const auto* group : {&optimizer, &optimizer.of(false)}) {
    for (const auto& each : group->hyperparameters) named[std::string(group->name) + "." + each.name] = value *= 0.75;
  }
  auto out = make_step(optimizer, named);
  out.gradient_scale = 0.3F;
  out.step = 11;
  return out;
}

TEST(Step, HasDefaultsAndWhatWasNamed) {
  const auto step = kernel_step(adamw, make_step(adamw, {{"learning_rate", 1e-3}, {"beta2", 0.95}}));
  EXPECT_EQ(step.learning_rate, 1e-3);
  EXPECT_EQ(step.beta1, 0.9);
  EXPECT_EQ(step.beta2, 0.95);
  EXPECT_EQ(step.epsilon, 1e-8);
  EXPECT_EQ(kernel_step(sgd, make_step(sgd, {{"momentum", 0.7}})).beta1, 0.7);
}

TEST(Step, RefusesWhatTheOptimizerHasNot) {
  expect_error(ErrorCode::bad_input, {"sgd has no hyperparameter beta1", "momentum"}, [] {
    (void)make_step(sgd, {{"beta1", 0.9}});
  });
  expect_error(ErrorCode::bad_input, {"sgd has no hyperparameter adamw.momentum"}, [] {
    (void)make_step(sgd, {{"adamw.momentum", 0.9}});
  });
  expect_error(ErrorCode::bad_input, {"beta1 of adamw is 1", "below 1"}, [] {
    (void)make_step(adamw, {{"beta1", 1.0}});
  });
  expect_error(ErrorCode::bad_input, {"learning_rate of adamw is -1", "at least 0"}, [] {
    (void)make_step(adamw, {{"learning_rate", -1.0}});
  });
}

TEST(Step, OfOneGroupReplacesThatOfAll) {
  const auto step = make_step(muon, {{"learning_rate", 1e-3}, {"muon.learning_rate", 2e-2}});
  EXPECT_EQ(group_step(muon, step, true).learning_rate(), 2e-2);
  EXPECT_EQ(kernel_step(adamw, group_step(muon, step, false)).learning_rate, 1e-3);
}

TEST(Step, ComesBackFromACommit) {
  for (const auto* it : all()) {
    SCOPED_TRACE(it->name);
    const auto step = some_step(*it);
    const auto blob = encode(*it, step);
    EXPECT_EQ(blob.size(), kFirstLayoutBytes + extension_bytes(*it));
    EXPECT_EQ(decode(*it, blob), step);
    expect_error(ErrorCode::corrupt, {it->name}, [&] { (void)decode(*it, std::span(blob).first(blob.size() - 1)); });
  }
}

/// Journals that were written before there were descriptors are read, and theirs can be read by what wrote those.
TEST(Step, OfTheFirstOptimizersLiesInACommitAsItAlwaysDid) {
  struct {
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    std::int64_t updates;
    float gradient_scale;
  } before{1e-5, 0.8, 0.95, 1e-7, 0.1, 11, 0.3F};
  auto step = make_step(
      adamw, {{"learning_rate", 1e-5}, {"beta1", 0.8}, {"beta2", 0.95}, {"epsilon", 1e-7}, {"weight_decay", 0.1}});
  step.gradient_scale = 0.3F;
  step.step = 11;
  const auto blob = encode(adamw, step);
  ASSERT_EQ(blob.size(), 52U);
  EXPECT_EQ(std::memcmp(blob.data(), &before, blob.size()), 0);
  for (const auto* it : {&adam, &lion, &sgd}) EXPECT_EQ(extension_bytes(*it), 0U) << it->name;
}

TEST(Step, OfAnotherOptimizerIsNoCommitOfThisOne) {
  auto blob = encode(muon, some_step(muon));
  blob[kFirstLayoutBytes] ^= std::byte{1};
  expect_error(ErrorCode::corrupt, {"another optimizer", "muon"}, [&] { (void)decode(muon, blob); });
}

}  // namespace
}  // namespace spillway::optim
