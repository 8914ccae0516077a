// How pieces are shared between paths that always have time for them.
#include "spillway/storage/striping_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace spillway::storage {
namespace {

constexpr std::uint64_t kMany = 1'000'000;

StripingPolicy policy_of(const std::vector<Speed>& speeds, std::uint64_t places = kMany) {
  StripingPolicy policy(speeds.size());
  for (std::uint32_t path = 0; path < speeds.size(); ++path) {
    policy.set_speed(path, speeds[path]);
    policy.add_places(path, places);
  }
  return policy;
}

/// Distributes pieces that are finished at once; how many each path got.
std::vector<int> stripe(StripingPolicy& policy, int pieces, std::size_t paths) {
  std::vector<int> counts(paths);
  for (int i = 0; i < pieces; ++i) {
    const std::uint32_t path = policy.choose(MiB);
    policy.end(path, MiB);
    ++counts[path];
  }
  return counts;
}

double weight(const Speed& speed) {
  return 1 / (1 / speed.read + 1 / speed.write);
}

std::vector<double> shares(const std::vector<Speed>& speeds) {
  double sum = 0;
  for (const Speed& speed : speeds) sum += weight(speed);
  std::vector<double> out;
  for (const Speed& speed : speeds) out.push_back(weight(speed) / sum);
  return out;
}

void expect_shares(const std::vector<int>& counts, const std::vector<double>& expected, double pieces_off) {
  int sum = 0;
  for (const int count : counts) sum += count;
  for (std::size_t path = 0; path < counts.size(); ++path) {
    EXPECT_NEAR(counts[path], expected[path] * sum, pieces_off) << "path " << path << " of " << counts.size();
  }
}

std::vector<Speed> any_speeds(std::mt19937& random) {
  std::uniform_real_distribution<double> exponent(std::log(20e6), std::log(7000e6));
  std::vector<Speed> speeds(1 + random() % 6);
  for (Speed& speed : speeds) speed = {std::exp(exponent(random)), std::exp(exponent(random))};
  return speeds;
}

TEST(StripingPolicy, SharesFollowTheSpeeds) {
  const std::vector<std::vector<Speed>> cases = {{{400e6, 400e6}, {400e6, 400e6}, {200e6, 200e6}},
                                                 {{3500e6, 3500e6}, {200e6, 200e6}},
                                                 {{3500e6, 500e6}, {1000e6, 1000e6}},
                                                 {{1e9, 1e9}}};
  for (const auto& speeds : cases) {
    StripingPolicy policy = policy_of(speeds);
    expect_shares(stripe(policy, 10'000, speeds.size()), shares(speeds), 2);
  }
}

TEST(StripingPolicy, OfPathsAsFastThoseThatAreNotFarComeFirst) {
  StripingPolicy policy = policy_of({{1e9, 1e9}, {1e9, 1e9}, {1e9, 1e9}});
  policy.set_remote(0, true);
  for (int round = 0; round < 10; ++round) {
    EXPECT_EQ(policy.choose(MiB), 1U);
    EXPECT_EQ(policy.choose(MiB), 2U);
    EXPECT_EQ(policy.choose(MiB), 0U);
    for (std::uint32_t path = 0; path < 3; ++path) policy.end(path, MiB);
  }
  StripingPolicy faster = policy_of({{2e9, 2e9}, {1e9, 1e9}});
  faster.set_remote(0, true);
  EXPECT_EQ(faster.choose(MiB), 0U) << "a faster one, however far";
}

TEST(StripingPolicy, SharesFollowAnySpeeds) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const auto speeds = any_speeds(random);
    StripingPolicy policy = policy_of(speeds);
    expect_shares(stripe(policy, 5'000, speeds.size()), shares(speeds), 1.0 + static_cast<double>(speeds.size()));
  }
}

TEST(StripingPolicy, NobodyStarves) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const auto speeds = any_speeds(random);
    const auto expected = shares(speeds);
    StripingPolicy policy = policy_of(speeds);
    std::vector<int> last(speeds.size(), 0);
    for (int i = 1; i <= 5'000; ++i) {
      const std::uint32_t path = policy.choose(MiB);
      policy.end(path, MiB);
      EXPECT_LE(i - last[path], 2 / expected[path] + static_cast<double>(speeds.size())) << "path " << path;
      last[path] = i;
    }
  }
}

TEST(StripingPolicy, ANewSpeedCountsAtOnce) {
  std::vector<Speed> speeds = {{400e6, 400e6}, {400e6, 400e6}, {200e6, 200e6}};
  StripingPolicy policy = policy_of(speeds);
  stripe(policy, 3'000, 3);
  speeds[0] = {100e6, 100e6};
  policy.set_speed(0, speeds[0]);
  expect_shares(stripe(policy, 700, 3), shares(speeds), 4);
  speeds[0] = {400e6, 400e6};
  policy.set_speed(0, speeds[0]);
  expect_shares(stripe(policy, 1'000, 3), shares(speeds), 6);
}

/// Pieces that a path at that speed takes in the time for which it keeps its claim.
double credit(const Speed& speed) {
  return StripingPolicy::kMostCredit * weight(speed) / static_cast<double>(MiB);
}

TEST(StripingPolicy, APathThatStandsIsSpared) {
  const Speed speed = {1e9, 1e9};
  StripingPolicy policy = policy_of({speed, speed});
  int held = 0;
  for (int i = 0; i < 5'000; ++i) {
    const std::uint32_t path = policy.choose(MiB);
    if (path == 1) {
      policy.end(path, MiB);
    } else {
      ++held;
    }
  }
  EXPECT_LE(held, StripingPolicy::kMostCredit * speed.write / static_cast<double>(MiB) + 2);
  EXPECT_EQ(policy.queued(0), static_cast<Bytes>(held) * MiB);
  policy.end(0, policy.queued(0));
  const auto later = stripe(policy, 1'000, 2);
  EXPECT_LE(later[0], 500 + credit(speed) / 2 + 2) << "it does not get in a burst what it missed";
  EXPECT_GE(later[0], 499);
}

TEST(StripingPolicy, FullAndClosedPathsGetNothing) {
  StripingPolicy policy = policy_of({{1e9, 1e9}, {1e9, 1e9}, {1e9, 1e9}}, 100);
  policy.close(2);
  EXPECT_EQ(policy.places(), 200U);
  EXPECT_EQ(stripe(policy, 200, 3), (std::vector<int>{100, 100, 0}));
  EXPECT_EQ(policy.places(), 0U);
  policy.add_places(0, 5);
  policy.add_places(2, 5);
  policy.remove_place(0);
  EXPECT_EQ(policy.places(), 4U);
  EXPECT_EQ(stripe(policy, 4, 3), (std::vector<int>{4, 0, 0}));
}

TEST(StripingPolicy, PlacesInSharesEndWithTheFirstFullPath) {
  StripingPolicy policy = policy_of({{400e6, 400e6}, {400e6, 400e6}, {200e6, 200e6}}, 100);
  EXPECT_EQ(policy.places_in_shares(), 250U) << "two fifths are 100";
  policy.add_places(0, 100);
  policy.add_places(1, 300);
  EXPECT_EQ(policy.places_in_shares(), 500U);
  const auto counts = stripe(policy, 499, 3);
  EXPECT_EQ(policy.places_in_shares(), 0U) << counts[0] << " of 200";
  EXPECT_GT(policy.places(), 0U);
  policy.close(0);
  EXPECT_GT(policy.places_in_shares(), 0U);
}

TEST(StripingPolicy, APathThatWasFullDoesNotGetABurst) {
  StripingPolicy policy = policy_of({{1e9, 1e9}, {1e9, 1e9}}, 10'000);
  for (int i = 0; i < 10'000; ++i) policy.remove_place(0);
  stripe(policy, 5'000, 2);
  policy.add_places(0, 10'000);
  const auto counts = stripe(policy, 1'000, 2);
  EXPECT_LE(counts[0], 500 + credit({1e9, 1e9}) / 2 + 2);
  EXPECT_GE(counts[0], 499);
}

TEST(StripingPolicy, ShortPiecesCostLess) {
  StripingPolicy policy = policy_of({{1e9, 1e9}, {1e9, 1e9}});
  std::vector<Bytes> bytes(2);
  for (int i = 0; i < 4'000; ++i) {
    const Bytes length = i % 2 == 0 ? MiB : 4 * KiB;
    const std::uint32_t path = policy.choose(length);
    policy.end(path, length);
    bytes[path] += length;
  }
  EXPECT_NEAR(static_cast<double>(bytes[0]) / static_cast<double>(bytes[1]), 1, 0.01);
}

TEST(StripingPolicy, TheSameCallsDistributeTheSameWay) {
  StripingPolicy one = policy_of({{3e9, 1e9}, {1e9, 2e9}, {2e9, 5e8}}), other = one;
  for (int i = 0; i < 1'000; ++i) EXPECT_EQ(one.choose(MiB), other.choose(MiB));
}

}  // namespace
}  // namespace spillway::storage
