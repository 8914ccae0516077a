#include "spillway/plan/bisect.h"

#include <gtest/gtest.h>

namespace spillway::plan {
namespace {

/// Whatever the guess: the answer is the largest that fits, the last that was asked for and fits, and 0 is never asked.
TEST(Bisect, FindsTheLargestFromAnyGuess) {
  for (unsigned most = 0; most < 20; ++most) {
    for (unsigned answer = 0; answer <= most; ++answer) {
      for (unsigned guess = 0; guess < 22; ++guess) {
        unsigned left = 0;
        const auto fits = [&](unsigned n) {
          EXPECT_GE(n, 1U);
          EXPECT_LE(n, most);
          if (n <= answer) left = n;
          return n <= answer;
        };
        EXPECT_EQ(bisect_from(guess, most, fits), answer);
        EXPECT_EQ(left, answer);
      }
    }
  }
}

TEST(Bisect, ANearGuessTakesFewQuestions) {
  const auto questions = [](unsigned guess, unsigned answer) {
    int asked = 0;
    bisect_from(guess, 100'000U, [&](unsigned n) { return ++asked, n <= answer; });
    return asked;
  };
  EXPECT_EQ(questions(100'000, 100'000), 1);
  EXPECT_EQ(questions(500, 500), 2);
  EXPECT_EQ(questions(500, 499), 2);
  EXPECT_EQ(questions(0, 0), 1);
  EXPECT_LE(questions(500, 504), 6);
  EXPECT_LE(questions(500, 496), 6);
}

}  // namespace
}  // namespace spillway::plan
