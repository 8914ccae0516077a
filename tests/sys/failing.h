// Catches the Error of a call, so that a test can look at all of it.
#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "spillway/base/error.h"

namespace spillway::testing {

/// The Error that `call` throws; none, and a failed test, when it throws none.
template <class Call>
std::optional<Error> error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no Error was thrown";
  return std::nullopt;
}

}  // namespace spillway::testing

/// `call` throws Error(code) whose message contains `part`.
#define EXPECT_ERROR(call, expected_code, part)                                                       \
  do {                                                                                                \
    const auto caught = ::spillway::testing::error_of([&] { call; });                                 \
    if (caught) {                                                                                     \
      EXPECT_EQ(static_cast<int>(caught->code()), static_cast<int>(expected_code)) << caught->what(); \
      EXPECT_NE(std::string(caught->what()).find(part), std::string::npos) << caught->what();         \
    }                                                                                                 \
  } while (false)
