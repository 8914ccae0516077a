// When projectors are fitted, from when on they hold, and what a skipped step leaves of them.
#include "spillway/subspace/subspaces.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "spillway/subspace/published.h"
#include "spillway/subspace/update.h"
#include "tests/subspace/subspace_case.h"
#include "tests/sys/failing.h"

namespace spillway::subspace {
namespace {

class SubspacesTest : public ::testing::Test {
 protected:
  explicit SubspacesTest(bool published = false)
      : it(state::StateFormat::exact, published),
        subspaces(it.description, it.layout),
        gradient(it.space().rows * it.space().columns) {
    std::mt19937 random(3);
    for (auto& value : gradient) value = std::normal_distribution<float>()(random);
  }

  [[nodiscard]] std::vector<float> values(unsigned side) const {
    const auto found = subspaces.side(it.tensor, side);
    return {found.values, found.values + found.nonzeros * found.stride()};
  }
  void restore(double refits, double whole) {
    const auto projectors = it.projectors(1, {.refits = refits, .whole = whole, .samples = 4});
    subspaces.restore(it.tensor, projectors.data());
  }

  /// The pair that a step has left a gradient for, behind its record.
  std::vector<std::byte> run_refit(Subspaces& by) {
    by.begin_refit(it.tensor);
    for (unsigned part = 0; part < subspace::Refit::kParts; ++part) {
      for (std::size_t tile = 0; tile < by.refit_tiles(it.tensor, part); ++tile) by.refit(part, tile);
    }
    std::vector<std::byte> out(optim::projector_fields(it.space()).bytes);
    by.end_refit(it.tensor, out.data());
    return out;
  }

  const test::SubspaceCase it;
  Subspaces subspaces;
  std::vector<float> gradient;
};

class PublishedTest : public SubspacesTest {
 protected:
  PublishedTest() : SubspacesTest(true) {}
  /// A step after so many updates, whose gradient is looked at.
  bool look(std::int64_t updates) {
    subspaces.begin(updates, 1);
    subspaces.open(it.tensor);
    EXPECT_TRUE(subspaces.refits_in_pass(it.tensor));
    EXPECT_TRUE(subspaces.looks(it.tensor));
    return subspaces.look(it.tensor, gradient);
  }
};

TEST_F(SubspacesTest, TheFirstProjectorsAreMadeInTheirStepAndForgottenWhenItIsSkipped) {
  for (const bool applied : {false, true}) {
    subspaces.begin(0, 1);
    subspaces.open(it.tensor);
    EXPECT_TRUE(subspaces.refits_in_pass(it.tensor));
    EXPECT_TRUE(subspaces.leave(it.tensor).empty()) << "S is made with them at once";
    const auto version = subspaces.version(it.tensor);
    subspaces.refit(it.tensor, gradient, {});
    EXPECT_NE(subspaces.version(it.tensor), version);
    EXPECT_FALSE(subspaces.refits_in_pass(it.tensor));
    EXPECT_GT(std::ranges::count_if(values(0), [](float value) { return value != 0; }), 0);
    subspaces.end(applied);
    EXPECT_EQ(subspaces.has_projectors(it.tensor), applied);
    EXPECT_EQ(subspaces.refits(it.tensor), applied ? 1U : 0U);
  }
}

TEST_F(SubspacesTest, WhatIsNotFiniteTeachesNothing) {
  gradient[7] = std::numeric_limits<float>::infinity();
  subspaces.begin(0, 1);
  subspaces.refit(it.tensor, gradient, {});
  EXPECT_FALSE(subspaces.has_projectors(it.tensor));
}

TEST_F(SubspacesTest, LaterOnesAreMadeWhereTheOldOnesMissTooMuchAndAnUpdateIsCheckedAfter) {
  restore(1, 1);  // nothing of it was captured
  EXPECT_GT(subspaces.error(it.tensor), it.description.refits.threshold);
  for (std::int64_t updates = 1; updates < 10; ++updates) {
    subspaces.begin(updates, 1);
    EXPECT_EQ(subspaces.refits_in_pass(it.tensor), updates % 3 == 0) << updates;
  }
  restore(1, 0);
  subspaces.begin(3, 1);
  EXPECT_FALSE(subspaces.refits_in_pass(it.tensor)) << "nothing is known to be missed";
}

TEST_F(SubspacesTest, LaterOnesHoldFromTheNextStepOn) {
  restore(1, 1);
  const auto old = values(0);
  subspaces.begin(3, 1);
  subspaces.open(it.tensor);
  std::ranges::copy(gradient, subspaces.leave(it.tensor).begin());
  subspaces.end(true);
  EXPECT_TRUE(subspaces.refitted(it.tensor));
  const auto projectors = run_refit(subspaces);
  EXPECT_EQ(values(0), old);
  subspaces.begin(4, 1);
  subspaces.open(it.tensor);
  const auto now = values(0);
  EXPECT_NE(now, old);
  EXPECT_EQ(std::memcmp(now.data(), projectors.data() + optim::projector_fields(it.space()).p.first,
                        now.size() * sizeof(float)),
            0);
  EXPECT_EQ(subspaces.refits(it.tensor), 2U);
  EXPECT_EQ(subspaces.change(it.tensor).before.refits, 1);
}

TEST_F(SubspacesTest, ThereIsRoomForSoManyGradientsAndNoMore) {
  restore(1, 1);
  for (std::size_t i = 0; i < plan::kGradientsLeft; ++i) EXPECT_EQ(subspaces.leave(it.tensor).size(), gradient.size());
  EXPECT_TRUE(subspaces.leave(it.tensor).empty());
  EXPECT_EQ(subspaces.counts().beside, plan::kGradientsLeft);
}

/// Where processes share virtual ranks, one refits, and the first pair is as any other.
TEST_F(SubspacesTest, AllProcessesHaveWhatOneRefits) {
  auto description = it.description;
  description.virtual_ranks = 2;
  Subspaces one(description, it.layout), other(description, it.layout);
  for (auto* each : {&one, &other}) {
    each->begin(0, 1);
    each->open(it.tensor);
    EXPECT_TRUE(each->due(it.tensor));
  }
  std::ranges::copy(gradient, one.leave(it.tensor).begin());
  run_refit(one);
  const auto from = one.exchanged(it.tensor, true), to = other.exchanged(it.tensor, false);
  for (std::size_t i = 0; i < from.size(); ++i) std::ranges::copy(from[i], to[i].begin());
  std::vector<std::byte> fields(optim::projector_fields(it.space()).bytes);
  for (auto* each : {&one, &other}) {
    each->received(it.tensor);
    EXPECT_TRUE(each->refitted(it.tensor));
    EXPECT_EQ(each->record(it.tensor).refits, 1);
    EXPECT_EQ(each->record(it.tensor).begun, 1) << "moments begin with the next step";
    each->put(it.tensor, fields.data());
    each->end(true);
    each->begin(1, 1);
    each->open(it.tensor);
    EXPECT_FALSE(each->due(it.tensor));
    const auto side = each->side(it.tensor, 1);
    EXPECT_EQ(std::memcmp(side.values, fields.data() + optim::projector_fields(it.space()).q.first,
                          side.nonzeros * side.stride() * sizeof(float)),
              0);
  }
}

TEST_F(PublishedTest, TheFirstPairIsThatOfTheMatrixAlone) {
  subspaces.begin(0, 1);
  subspaces.open(it.tensor);
  EXPECT_FALSE(subspaces.looks(it.tensor));
  EXPECT_TRUE(subspaces.leave(it.tensor).empty()) << "S is made with it at once";
  subspaces.refit(it.tensor, gradient, {});
  subspaces.end(true);
  PublishedMatrix alone({.shape = {.rows = it.space().rows,
                                   .columns = it.space().columns,
                                   .rank = it.space().rank,
                                   .nonzeros = it.space().nonzeros},
                         .seed = it.description.seed});
  alone.refit(gradient);
  EXPECT_EQ(values(0), alone.pair().p.values());
  EXPECT_EQ(values(1), alone.pair().q.values());
  EXPECT_EQ(subspaces.error(it.tensor), alone.missed());
  EXPECT_FALSE(subspaces.samples(it.tensor)) << "there is no running estimate";
}

TEST_F(PublishedTest, APairIsLookedAtAndStaysWhereItMissesLittle) {
  restore(1, 0);
  subspaces.begin(2, 1);
  EXPECT_FALSE(subspaces.refits_in_pass(it.tensor)) << "every third update is looked at";
  EXPECT_TRUE(look(3)) << "by chance it misses nearly all";
  EXPECT_GT(subspaces.record(it.tensor).missed, it.description.refits.threshold);
  ASSERT_FALSE(subspaces.leave(it.tensor).empty());
  subspaces.end(false);
  EXPECT_EQ(subspaces.record(it.tensor).missed, 0) << "a skipped step forgets";
  std::ranges::fill(gradient, 0.0F);
  EXPECT_FALSE(look(3));
  EXPECT_FALSE(subspaces.refitted(it.tensor));
  EXPECT_FALSE(subspaces.refits_in_pass(it.tensor)) << "one gradient of a step is looked at";
  gradient[7] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(look(6));
}

TEST_F(PublishedTest, LaterOnesHoldFromTheNextStepOnAtPlacesOfTheirOwn) {
  restore(1, 0);
  const auto old = values(0);
  EXPECT_TRUE(look(3));
  std::ranges::copy(gradient, subspaces.leave(it.tensor).begin());
  subspaces.end(true);
  const auto projectors = run_refit(subspaces);  // behind its step
  EXPECT_EQ(values(0), old);
  const auto record = subspaces.record(it.tensor);
  EXPECT_EQ(record.refits, 2);
  EXPECT_EQ(record.begun, 0) << "moments are carried over";
  EXPECT_EQ(subspaces.error(it.tensor), record.missed);
  subspaces.begin(4, 1);
  subspaces.open(it.tensor);
  auto pair = shape_of(it.space());
  get_pair(it.space(), projectors.data(), pair);
  EXPECT_EQ(values(0), pair.p.values());
  EXPECT_NE(pair.p.places(), Projector::random(pair.p, it.description.seed, 0, 0, 0).places());
  EXPECT_EQ(pair.p.places(), Projector::random(pair.p, it.description.seed, 0, 1, 0).places());
}

TEST_F(PublishedTest, AllProcessesKnowWhatOneHasLookedAt) {
  auto description = it.description;
  description.virtual_ranks = 2;
  Subspaces one(description, it.layout), other(description, it.layout);
  for (const bool again : {false, true}) {
    for (auto* each : {&one, &other}) {
      each->restore(it.tensor, it.projectors(1, {.refits = 1}).data());
      each->begin(3, 1);
      each->open(it.tensor);
      EXPECT_TRUE(each->due(it.tensor));
    }
    if (!again) std::ranges::fill(gradient, 0.0F);
    if (again) gradient.front() = 1;
    EXPECT_EQ(one.look(it.tensor, gradient), again);
    if (again) std::ranges::copy(gradient, one.leave(it.tensor).begin());
    if (again) run_refit(one);
    const auto from = one.exchanged(it.tensor, true), to = other.exchanged(it.tensor, false);
    for (std::size_t i = 0; i < from.size(); ++i) std::ranges::copy(from[i], to[i].begin());
    std::vector<std::byte> fields[2];
    for (auto* each : {&one, &other}) {
      each->received(it.tensor);
      EXPECT_EQ(each->refitted(it.tensor), again);
      EXPECT_TRUE(each->has_news(it.tensor));
      EXPECT_EQ(each->record(it.tensor), one.record(it.tensor));
      auto& out = fields[each == &one ? 0 : 1];
      out.resize(optim::projector_fields(it.space()).bytes);
      each->put(it.tensor, out.data());
      each->end(true);
    }
    EXPECT_EQ(fields[0], fields[1]);
  }
}

TEST_F(PublishedTest, PlacesOutsideAProjectorAreRefused) {
  auto projectors = it.projectors(1, {.refits = 1});
  const std::uint32_t outside = 32;
  std::memcpy(projectors.data() + optim::projector_fields(it.space()).q.places(), &outside, sizeof(outside));
  EXPECT_ERROR(subspaces.restore(it.tensor, projectors.data()), ErrorCode::bad_input, "at random places");
}

TEST_F(SubspacesTest, SignsAreThoseOfTheStep) {
  std::vector<float> one(it.space().columns), again = one, next = one;
  subspaces.begin(5, 1);
  subspaces.signs(it.tensor, one);
  subspaces.signs(it.tensor, again);
  subspaces.begin(6, 1);
  subspaces.signs(it.tensor, next);
  EXPECT_EQ(one, again);
  EXPECT_NE(one, next);
  EXPECT_TRUE(std::ranges::all_of(one, [](float value) { return value == 1 || value == -1; }));
}

TEST_F(SubspacesTest, OtherTensorsAndShapesAreRefused) {
  EXPECT_ERROR(subspaces.check(it.tensor, 5), ErrorCode::bad_input, "which is 96 x 64");
  EXPECT_ERROR(subspaces.open(it.layout.tensors().size()), ErrorCode::bad_input, "does not learn in a subspace");
}

}  // namespace
}  // namespace spillway::subspace
