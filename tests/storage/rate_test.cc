#include "spillway/storage/rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace spillway::storage {
namespace {

constexpr double kMega = 1e6;
constexpr Speed kExpected = {400 * kMega, 300 * kMega};

/// Moves that much in pieces of 1 MiB, at that speed.
void move(Rate& rate, Direction direction, Bytes bytes, double speed) {
  for (; bytes > 0; bytes -= MiB) rate.add(direction, MiB, static_cast<double>(MiB) / speed);
}
void read(Rate& rate, Bytes bytes, double speed) {
  move(rate, Direction::read, bytes, speed);
}
void write(Rate& rate, Bytes bytes, double speed) {
  move(rate, Direction::write, bytes, speed);
}

void expect_speed(const Rate& rate, double read, double write, double tolerance = 1e-6) {
  EXPECT_NEAR(rate.speed().read / read, 1, tolerance);
  EXPECT_NEAR(rate.speed().write / write, 1, tolerance);
}

TEST(Rate, IsWhatWasExpectedAtFirst) {
  Rate rate(kExpected);
  expect_speed(rate, kExpected.read, kExpected.write);
  read(rate, 31 * MiB, 100 * kMega);
  expect_speed(rate, kExpected.read, kExpected.write);
}

TEST(Rate, OneDirectionSaysNothingOfTheOther) {
  Rate rate(kExpected);
  read(rate, 100 * MiB, 100 * kMega);
  expect_speed(rate, 100 * kMega, kExpected.write);
  write(rate, 100 * MiB, 50 * kMega);
  expect_speed(rate, 100 * kMega, 50 * kMega);
}

TEST(Rate, ForgetsWhatIsOlderThanItsWindow) {
  Rate rate(kExpected);
  write(rate, 1000 * MiB, 400 * kMega);
  expect_speed(rate, kExpected.read, 400 * kMega);
  write(rate, 80 * MiB, 100 * kMega);
  expect_speed(rate, kExpected.read, 100 * kMega);
}

TEST(Rate, OneStopIsNotASlowDrive) {
  Rate rate(kExpected);
  read(rate, 200 * MiB, 400 * kMega);
  rate.add(Direction::read, 8 * MiB, 10.0);
  read(rate, 8 * MiB, 400 * kMega);
  expect_speed(rate, 400 * kMega, kExpected.write);
}

TEST(Rate, NoiseIsDamped) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> noise(0.6, 1.4);
  Rate rate(kExpected);
  double sum = 0, squares = 0;
  constexpr int kStretches = 2000;
  for (int round = -40; round < kStretches; ++round) {
    const Bytes bytes = (10 + random() % 40) * MiB;
    rate.add(Direction::write, bytes, static_cast<double>(bytes) / (200 * kMega) * noise(random));
    if (round < 0) continue;
    const double relative = rate.speed().write / (200 * kMega);
    sum += relative;
    squares += relative * relative;
  }
  const double mean = sum / kStretches;
  EXPECT_NEAR(mean, 1, 0.12);
  EXPECT_LT(std::sqrt(squares / kStretches - mean * mean), 0.1) << "a single stretch is off by 0.25";
}

TEST(Rate, WhatACacheAnswersDoesNotCount) {
  Rate rate(kExpected);
  for (int round = 0; round < 100; ++round) {
    write(rate, 300 * MiB, round % 2 == 0 ? 2000 * kMega : 100 * kMega);
    if (round > 0) expect_speed(rate, kExpected.read, 100 * kMega, 0.3);
  }
}

TEST(Rate, OfTwoDirectionsAKnownOneStandsForTheOther) {
  expect_speed(Rate({300 * kMega, 0}), 300 * kMega, 300 * kMega);
  expect_speed(Rate({0, 0}, {80 * kMega, 70 * kMega}), 80 * kMega, 70 * kMega);
  Rate rate({0, 0});
  write(rate, 100 * MiB, 90 * kMega);
  expect_speed(rate, 90 * kMega, 90 * kMega);
  read(rate, 100 * MiB, 150 * kMega);
  expect_speed(rate, 150 * kMega, 90 * kMega);
}

TEST(Rate, AVeryFastPathNeedsTimeToo) {
  Rate rate(kExpected);
  const double speed = static_cast<double>(8 * MiB) / Rate::kEntrySeconds;
  read(rate, 30 * 8 * MiB, 10 * speed);
  expect_speed(rate, kExpected.read, kExpected.write);
  read(rate, 8 * 20 * 8 * MiB, 20 * speed);
  expect_speed(rate, 20 * speed, kExpected.write);
}

TEST(Rate, IdlePollsChangeNothing) {
  Rate rate(kExpected);
  for (int i = 0; i < 1000; ++i) rate.add(Direction::write, 0, 0.0, 0.01);
  expect_speed(rate, kExpected.read, kExpected.write);
}

/// Moves that much at that speed, and is idle for as long as makes it `mean` bytes a second.
void read_in_bursts(Rate& rate, Bytes bytes, double speed, double mean) {
  for (; bytes > 0; bytes -= MiB) {
    const double busy = static_cast<double>(MiB) / speed;
    rate.add(Direction::read, MiB, busy, static_cast<double>(MiB) / mean - busy);
  }
}

TEST(Rate, StandsWhileItIsBetweenWhatWasMovedAndWhatABurstMoves) {
  Rate rate(kExpected);
  read_in_bursts(rate, 1000 * MiB, 3 * kExpected.read, 0.8 * kExpected.read);
  EXPECT_GE(rate.speed().read, kExpected.read * (1 - 1e-6));
  EXPECT_LE(rate.speed().read, kExpected.read * 0.8 * Rate::kHeadroom * (1 + 1e-6));
  read_in_bursts(rate, 1000 * MiB, 3 * kExpected.read, 0.1 * kExpected.read);
  EXPECT_GE(rate.speed().read, kExpected.read * (1 - 1e-6)) << "a path that is asked for little is not slow";
}

TEST(Rate, NoPathIsFasterThanWhenItIsBusy) {
  Rate rate(kExpected);
  read_in_bursts(rate, 1000 * MiB, 0.5 * kExpected.read, 0.1 * kExpected.read);
  expect_speed(rate, 0.5 * kExpected.read, kExpected.write);
}

TEST(Rate, GrowsWithWhatIsMovedUntilThePathIsBusy) {
  Rate rate(kExpected);
  read(rate, 400 * MiB, 100 * kMega);
  double moved = 100 * kMega;
  for (int round = 0; round < 20; ++round) {
    read_in_bursts(rate, 200 * MiB, 600 * kMega, moved);
    const double speed = rate.speed().read;
    EXPECT_GT(speed, std::min(moved * 1.4, 590 * kMega)) << "round " << round;
    EXPECT_LT(speed, moved * Rate::kHeadroom * (1 + 1e-6));
    moved = std::min(speed, 600 * kMega);
  }
  read(rate, 400 * MiB, 600 * kMega);
  expect_speed(rate, 600 * kMega, kExpected.write);
}

TEST(Rate, OfAnIdlePathGrowsSlowly) {
  Rate rate(kExpected);
  read(rate, 400 * MiB, 100 * kMega);
  const auto entry = static_cast<Bytes>(Rate::kEntryBytes + MiB);
  read_in_bursts(rate, entry, 1000 * kMega, 100 * kMega);
  EXPECT_LE(rate.speed().read, 100 * kMega * Rate::kGrowth * Rate::kGrowth);
}

}  // namespace
}  // namespace spillway::storage
