// Tests that take long, or whose matrix is only breadth: a few representatives by default, all of it in `make nightly`.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

namespace spillway::testing {

/// Whether everything is wanted: SPILLWAY_NIGHTLY=1 in the environment, as `make nightly` sets it.
inline bool nightly() {
  const char* asked = std::getenv("SPILLWAY_NIGHTLY");
  return asked != nullptr && *asked != '\0' && std::strcmp(asked, "0") != 0;
}

/// `many` in `make nightly`, else `few`: of kills, seeds, rounds.
template <class T>
T few_or(T few, T many) {
  return nightly() ? many : few;
}

}  // namespace spillway::testing

/// Leaves a test that only `make nightly` runs. The summary of a run does not count it among what the machine lacks.
#define SPILLWAY_NIGHTLY_ONLY() \
  if (!::spillway::testing::nightly()) GTEST_SKIP() << "nightly: SPILLWAY_NIGHTLY=1 runs it"
