#include <gtest/gtest.h>

#include <cstdio>
#include <exception>

#include "tests/needs.h"

int main(int count, char** words) {
  ::testing::InitGoogleTest(&count, words);
  try {
    spillway::testing::check_required();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return RUN_ALL_TESTS();
}
