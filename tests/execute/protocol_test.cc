// Which call may follow which, and what one hands to the next.
#include "spillway/execute/protocol.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "spillway/base/error.h"

namespace spillway::execute {
namespace {

using ProtocolOptions = StepProtocol::Options;

const StepUpdate kGiven{.learning_rate = 0.01, .weight_decay = 0.1, .max_grad_norm = 1};
constexpr kernels::Norm kSmall{.sum = 0.25}, kLarge{.sum = 16},
    kNotFinite{.sum = std::numeric_limits<double>::infinity()};

void begin_passes(StepProtocol& it, const std::optional<StepUpdate>& expected = std::nullopt) {
  if (it.state() == StepState::begin || it.state() == StepState::decide) it.commit();
  if (it.state() == StepState::commit) it.publish();
  it.begin(expected);
}

Decision take_step(StepProtocol& it, const kernels::Norm& norm = kSmall, const StepUpdate& update = kGiven,
                   const std::optional<StepUpdate>& expected = std::nullopt) {
  begin_passes(it, expected);
  it.norm();
  return it.decide(norm, update);
}

// ---- the table of transitions

struct Way {
  const char* name;
  std::function<void(StepProtocol&)> go;
};

/// To every state; to `decide` with an update pending and without one.
const std::array<Way, 8> kWays = {{
    {"begin", [](StepProtocol&) {}},
    {"passes", [](StepProtocol& it) { begin_passes(it); }},
    {"norm", [](StepProtocol& it) { begin_passes(it), it.norm(); }},
    {"decide", [](StepProtocol& it) { take_step(it); }},
    {"decide, skipped", [](StepProtocol& it) { take_step(it, kNotFinite); }},
    {"commit", [](StepProtocol& it) { take_step(it), it.commit(); }},
    {"publish", [](StepProtocol& it) { take_step(it), it.commit(), it.publish(); }},
    {"evaluate", [](StepProtocol& it) { it.evaluate(); }},
}};

struct Call {
  const char* name;
  std::function<void(StepProtocol&)> make;
  const char* legal;                  ///< by way: x where it is
  std::optional<StepState> leads_to;  ///< none: the state stays
};

const std::array<Call, 12> kCalls = {{
    {"load", [](StepProtocol& it) { it.load(); }, "x...x.x.", std::nullopt},
    {"load_updates", [](StepProtocol& it) { it.load_updates(3); }, "x...x.x.", std::nullopt},
    {"load_step", [](StepProtocol& it) { it.load_step(3); }, "x...x.x.", std::nullopt},
    {"load_scale",
     [](StepProtocol& it) {
       it.load_scale({2, 0});
     },
     "x...x.x.", std::nullopt},
    {"commit", [](StepProtocol& it) { it.commit(); }, "x..xx...", StepState::commit},
    {"publish", [](StepProtocol& it) { it.publish(); }, ".....x..", StepState::publish},
    {"begin", [](StepProtocol& it) { it.begin(kGiven); }, "......x.", StepState::passes},
    {"norm", [](StepProtocol& it) { it.norm(); }, ".x......", StepState::norm},
    {"abandon", [](StepProtocol& it) { it.abandon(); }, "..x.....", StepState::publish},
    {"decide", [](StepProtocol& it) { it.decide(kSmall, kGiven); }, "..x.....", StepState::decide},
    {"evaluate", [](StepProtocol& it) { it.evaluate(); }, "x...x.x.", StepState::evaluate},
    {"end_evaluation", [](StepProtocol& it) { it.end_evaluation(); }, ".......x", StepState::begin},
}};

TEST(StepProtocol, AnAbandonedStepIsAsIfItHadNotBegun) {
  StepProtocol it({.scales_loss = true});
  take_step(it);
  begin_passes(it);
  const auto at = it.position();
  const auto scale = it.scaler().state();
  it.norm();
  it.abandon();
  EXPECT_EQ(it.position(), at);
  EXPECT_EQ(it.scaler().state().good, scale.good);
  EXPECT_FALSE(it.pending());
  EXPECT_FALSE(take_step(it).skipped);
  EXPECT_EQ(it.position().step, at.step + 1);
}

TEST(StepProtocol, ASkippedStepWithAFiniteGradientLeavesTheLossScale) {
  StepProtocol it({.scales_loss = true});
  auto skips = kGiven;
  skips.skip = true;
  const auto before = it.scaler().state();
  EXPECT_TRUE(take_step(it, kSmall, skips).skipped);
  EXPECT_EQ(it.scaler().state().scale, before.scale);
  EXPECT_EQ(it.position().updates, 0);
}

TEST(StepProtocol, HasATableOfTransitions) {
  for (const auto& call : kCalls) {
    for (std::size_t way = 0; way < kWays.size(); ++way) {
      SCOPED_TRACE(text(call.name, " in ", kWays[way].name));
      StepProtocol it(ProtocolOptions{});
      kWays[way].go(it);
      const auto before = it.state();
      const auto position = it.position();
      if (call.legal[way] == 'x') {
        ASSERT_NO_THROW(call.make(it));
        EXPECT_EQ(it.state(), call.leads_to.value_or(before));
        continue;
      }
      try {
        call.make(it);
        ADD_FAILURE() << "is legal";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::bad_input);
        EXPECT_NE(std::string(error.what()).find("out of order: "), std::string::npos) << error.what();
      }
      EXPECT_EQ(it.state(), before);
      EXPECT_EQ(it.position(), position);
    }
  }
}

TEST(StepProtocol, SaysWhatIsUnderWayWhereACallIsOutOfOrder) {
  StepProtocol it(ProtocolOptions{});
  begin_passes(it);
  try {
    it.begin(std::nullopt);
    FAIL() << "two steps are under way";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "begin_step() is out of order: the block passes of a step are under way, which end_step() ends");
  }
}

TEST(StepProtocol, GoesBackToWhereAnEvaluationBegan) {
  for (const auto* way : {&kWays[0], &kWays[4], &kWays[6]}) {
    SCOPED_TRACE(way->name);
    StepProtocol it(ProtocolOptions{});
    way->go(it);
    const auto before = it.state();
    const auto position = it.position();
    it.evaluate();
    EXPECT_TRUE(it.in_passes());
    it.end_evaluation();
    EXPECT_EQ(it.state(), before);
    EXPECT_EQ(it.position(), position);
  }
}

TEST(StepProtocol, GoesOnFromADurableStepWithoutACommit) {
  StepProtocol it(ProtocolOptions{}, {.step = 7, .applied = 6, .updates = 5}, true);
  EXPECT_EQ(it.state(), StepState::publish);
  EXPECT_FALSE(it.pending());
  it.begin(std::nullopt);
  it.norm();
  it.decide(kSmall, kGiven);
  EXPECT_EQ(it.position(), (StepPosition{.step = 8, .applied = 8, .updates = 6}));
  EXPECT_EQ(it.commit().update.step, 6);
}

// ---- what is decided

TEST(StepProtocol, ClipsByTheNormAndUndoesTheLossScale) {
  StepProtocol it({.scales_loss = true});
  it.load_scale({4, 0});
  const auto found = take_step(it, {.sum = 16.0 * 16 * 4}, kGiven);  // the scaled gradient's norm is 32
  EXPECT_EQ(found.loss_scale, 4);
  EXPECT_EQ(found.grad_norm, 8);
  EXPECT_EQ(found.clip, 1 / (8 + 1e-6F));
  EXPECT_FALSE(found.skipped);
  it.commit();
  const auto published = it.publish();
  EXPECT_TRUE(published.pending);
  EXPECT_EQ(published.update.gradient_scale, found.clip / 4);
}

TEST(StepProtocol, DoesNotClipWithoutALimit) {
  StepProtocol it(ProtocolOptions{});
  auto update = kGiven;
  update.max_grad_norm = 0;
  EXPECT_EQ(take_step(it, kLarge, update).clip, 1);
}

TEST(StepProtocol, SkipsAStepWhoseGradientIsNotFinite) {
  StepProtocol it({.scales_loss = true});
  take_step(it);
  it.commit(), it.publish();
  const auto scale = it.scaler().scale();
  const auto found = take_step(it, kNotFinite);
  EXPECT_TRUE(found.skipped);
  EXPECT_FALSE(found.kept);
  EXPECT_FALSE(it.pending());
  EXPECT_EQ(found.loss_scale, scale);
  EXPECT_EQ(it.scaler().scale(), scale / 2);
  EXPECT_EQ(it.position(), (StepPosition{.step = 2, .applied = 1, .updates = 1}));
  const auto commitment = it.commit();
  EXPECT_TRUE(commitment.skipped);
  EXPECT_EQ(commitment.at.step, 2U);
  EXPECT_EQ(commitment.update.learning_rate(), kGiven.learning_rate) << "of the step before";
  EXPECT_EQ(commitment.update.step, 1);
  EXPECT_FALSE(it.publish().pending);
  EXPECT_FALSE(take_step(it).skipped);
  EXPECT_FALSE(it.commit().skipped);
}

TEST(StepProtocol, PublishesAnUpdateOnce) {
  StepProtocol it(ProtocolOptions{});
  take_step(it);
  EXPECT_TRUE(it.pending());
  it.commit();
  EXPECT_TRUE(it.publish().pending);
  EXPECT_FALSE(it.pending());
  take_step(it, kNotFinite);
  it.commit();
  EXPECT_FALSE(it.publish().pending);
}

TEST(StepProtocol, CountsFromWhatWasLoaded) {
  StepProtocol it(ProtocolOptions{});
  it.load_updates(40);
  it.load_step(44);
  const auto commitment = it.commit();
  EXPECT_EQ(commitment.at, (StepPosition{.step = 44, .applied = 44, .updates = 40}));
  EXPECT_EQ(commitment.update.step, 40);
  take_step(it);
  EXPECT_EQ(it.position(), (StepPosition{.step = 45, .applied = 45, .updates = 41}));
}

// ---- what is predicted

StepUpdate without_limit() {
  auto out = kGiven;
  out.max_grad_norm = 0;
  return out;
}

TEST(StepProtocol, PredictsNothingWhereNothingIsUpdatedEarlyOrExpected) {
  StepProtocol late(ProtocolOptions{}), early({.early = true});
  late.commit(), late.publish();
  EXPECT_FALSE(late.begin(without_limit()));
  early.commit(), early.publish();
  EXPECT_FALSE(early.begin(std::nullopt));
}

TEST(StepProtocol, KeepsWhatWasPredictedAndNothingElse) {
  struct Row {
    const char* name;
    StepUpdate expected, given;
    kernels::Norm norm;
    bool kept;
  };
  auto rate = without_limit();
  rate.learning_rate = 0.02;
  auto limit = without_limit();
  limit.max_grad_norm = 100;
  const std::array<Row, 5> rows = {{
      {"as expected", without_limit(), without_limit(), kSmall, true},
      {"another rate", without_limit(), rate, kSmall, false},
      {"a limit that does not clip", without_limit(), limit, kSmall, true},
      {"a limit that clips", without_limit(), kGiven, kLarge, false},
      {"not finite", without_limit(), without_limit(), kNotFinite, false},
  }};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    StepProtocol it({.early = true});
    const auto found = take_step(it, row.norm, row.given, row.expected);
    EXPECT_EQ(found.kept, row.kept);
    it.commit();
    EXPECT_EQ(it.publish().kept, row.kept);
  }
}

TEST(StepProtocol, RefusesHyperparametersThatTheOptimizerHasNotAndStaysAsItWas) {
  StepProtocol it({.early = true});
  auto wrong = without_limit();
  wrong.hyperparameters["momentum of none"] = 1;
  it.commit(), it.publish();
  EXPECT_THROW(it.check(wrong), Error);
  EXPECT_THROW(it.begin(wrong), Error);
  EXPECT_EQ(it.state(), StepState::publish);
  it.begin(without_limit());
  it.norm();
  EXPECT_THROW(it.decide(kSmall, wrong), Error);
  EXPECT_EQ(it.state(), StepState::norm);
  EXPECT_TRUE(it.decide(kSmall, without_limit()).kept);
}

TEST(StepProtocol, PredictsTheFactorAndTheNumberOfTheUpdate) {
  StepProtocol it({.seed = 9, .scales_loss = true, .early = true});
  it.load_updates(5);
  it.load_scale({8, 0});
  it.commit(), it.publish();
  const auto predicted = it.begin(without_limit());
  ASSERT_TRUE(predicted);
  EXPECT_EQ(predicted->gradient_scale, 1.0F / 8);
  EXPECT_EQ(predicted->step, 6);
  EXPECT_EQ(predicted->seed, 9U);
}

TEST(StepProtocol, SpeculatesAfterStepsThatDidNotClip) {
  for (const bool speculates : {false, true}) {
    StepProtocol it({.early = true, .speculates = speculates});
    const auto predicts = [&] {
      begin_passes(it);
      it.norm();
      it.decide(kSmall, kGiven);
      it.commit(), it.publish();
      const bool out = it.begin(kGiven).has_value();
      it.norm();
      return out;
    };
    EXPECT_FALSE(predicts());  // one step
    it.decide(kSmall, kGiven);
    EXPECT_EQ(predicts(), speculates);  // three
    it.decide(kLarge, kGiven);          // which clips
    EXPECT_FALSE(predicts());
    it.decide(kSmall, kGiven);
    EXPECT_EQ(predicts(), speculates);
    it.decide(kNotFinite, kGiven);
    EXPECT_FALSE(predicts());
  }
}

}  // namespace
}  // namespace spillway::execute
