#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "spillway/storage/rate.h"

namespace spillway::storage {
namespace {

constexpr double kMega = 1e6;
constexpr Speed kExpected = {400 * kMega, 300 * kMega};

/// Moves that much in pieces of 1 MiB, at that speed.
void move(Rate& rate, Bytes read, Bytes written, const Speed& speed) {
  while (read + written > 0) {
    const Bytes now_read = std::min(read, MiB), now_written = std::min(written, MiB);
    rate.add(now_read, now_written,
             static_cast<double>(now_read) / speed.read + static_cast<double>(now_written) / speed.write);
    read -= now_read;
    written -= now_written;
  }
}

void expect_speed(const Rate& rate, double read, double write, double tolerance = 1e-6) {
  EXPECT_NEAR(rate.speed().read / read, 1, tolerance);
  EXPECT_NEAR(rate.speed().write / write, 1, tolerance);
}

TEST(Rate, IsWhatWasExpectedAtFirst) {
  Rate rate(kExpected);
  expect_speed(rate, kExpected.read, kExpected.write);
  move(rate, 31 * MiB, 0, {100 * kMega, 1});
  expect_speed(rate, kExpected.read, kExpected.write);
}

TEST(Rate, OneDirectionSaysNothingOfTheOther) {
  Rate rate(kExpected);
  move(rate, 100 * MiB, 0, {100 * kMega, 1});
  expect_speed(rate, 100 * kMega, kExpected.write);
  move(rate, 0, 100 * MiB, {1, 50 * kMega});
  expect_speed(rate, 100 * kMega, 50 * kMega);
}

TEST(Rate, ForgetsWhatIsOlderThanItsWindow) {
  Rate rate(kExpected);
  move(rate, 0, 1000 * MiB, {1, 400 * kMega});
  expect_speed(rate, kExpected.read, 400 * kMega);
  move(rate, 0, 80 * MiB, {1, 100 * kMega});
  expect_speed(rate, kExpected.read, 100 * kMega);
}

TEST(Rate, BothDirectionsShareTheTime) {
  Rate rate(kExpected);
  move(rate, 200 * MiB, 200 * MiB, {200 * kMega, 150 * kMega});  // each hinders the other by as much
  expect_speed(rate, 200 * kMega, 150 * kMega);
}

TEST(Rate, TheSumOfBothIsRightForAnyMixture) {
  for (const Bytes read : {10, 100, 300}) {
    Rate rate(kExpected);
    double seconds = 0;
    const Speed speed = {100 * kMega, 700 * kMega};
    const Bytes written = 400 - read;
    for (int round = 0; round < 40; ++round) {
      const double took =
          static_cast<double>(read * MiB) / speed.read + static_cast<double>(written * MiB) / speed.write;
      rate.add(read * MiB, written * MiB, took);
      seconds = took;
    }
    const double predicted =
        static_cast<double>(read * MiB) / rate.speed().read + static_cast<double>(written * MiB) / rate.speed().write;
    EXPECT_NEAR(predicted / seconds, 1, 1e-6);
  }
}

TEST(Rate, OneStopIsNotASlowDrive) {
  Rate rate(kExpected);
  move(rate, 200 * MiB, 0, {400 * kMega, 1});
  rate.add(8 * MiB, 0, 10.0);
  move(rate, 8 * MiB, 0, {400 * kMega, 1});
  expect_speed(rate, 400 * kMega, kExpected.write);
}

TEST(Rate, NoiseIsDamped) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> noise(0.6, 1.4);
  Rate rate(kExpected);
  double sum = 0, squares = 0;
  constexpr int kRounds = 2000;
  for (int round = -40; round < kRounds; ++round) {
    const Bytes bytes = (8 + random() % 40) * MiB;
    rate.add(0, bytes, static_cast<double>(bytes) / (200 * kMega) * noise(random));
    if (round < 0) continue;
    const double off = rate.speed().write / (200 * kMega) - 1;
    sum += off;
    squares += off * off;
  }
  EXPECT_NEAR(sum / kRounds, 0, 0.05);
  EXPECT_LT(std::sqrt(squares / kRounds), 0.12) << "a single stretch is off by 0.25";
}

TEST(Rate, OfTwoDirectionsAKnownOneStandsForTheOther) {
  expect_speed(Rate({300 * kMega, 0}), 300 * kMega, 300 * kMega);
  expect_speed(Rate({0, 0}, {80 * kMega, 70 * kMega}), 80 * kMega, 70 * kMega);
  Rate rate({0, 0});
  move(rate, 0, 100 * MiB, {1, 90 * kMega});
  expect_speed(rate, 90 * kMega, 90 * kMega);
  move(rate, 100 * MiB, 0, {150 * kMega, 1});
  expect_speed(rate, 150 * kMega, 90 * kMega);
}

TEST(Rate, AVeryFastPathNeedsTimeToo) {
  Rate rate(kExpected);
  for (int i = 0; i < 10; ++i) rate.add(8 * MiB, 0, Rate::kEntrySeconds / 10);
  expect_speed(rate, kExpected.read, kExpected.write);
  for (int i = 0; i < 100; ++i) rate.add(8 * MiB, 0, Rate::kEntrySeconds / 10);
  expect_speed(rate, static_cast<double>(8 * MiB) * 10 / Rate::kEntrySeconds, kExpected.write);
}

TEST(Rate, IdlePollsChangeNothing) {
  Rate rate(kExpected);
  for (int i = 0; i < 1000; ++i) rate.add(0, 0, 0.0);
  expect_speed(rate, kExpected.read, kExpected.write);
}

}  // namespace
}  // namespace spillway::storage
