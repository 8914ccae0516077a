// A call that is refused.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "spillway/base/error.h"

namespace spillway::optim {

/// `call` throws an Error of that code, whose message has all `parts`.
template <class Call>
void expect_error(ErrorCode code, const std::vector<std::string>& parts, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const auto& part : parts) EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    return;
  }
  ADD_FAILURE() << "nothing was thrown";
}

}  // namespace spillway::optim
