#include <gtest/gtest.h>

#include <cstdio>
#include <exception>

#include "tests/needs.h"

/// The reference count of std::exception_ptr lives in libstdc++, which is not instrumented: handing an Error from the
/// path's thread to another looks like a race between its last reader and its destruction.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}

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
