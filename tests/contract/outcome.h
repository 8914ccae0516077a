// What a short training gave, to compare runs whose bytes lie elsewhere bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/engine.h"

namespace spillway {

struct Outcome {
  std::vector<float> masters;
  std::vector<double> norms;
};

inline Settings everything_in_dram() {
  Settings out;
  out.budget.dram = 4 * GiB;
  return out;
}

inline void expect_same(const Outcome& expected, const Outcome& found, const std::string& what) {
  ASSERT_EQ(expected.norms, found.norms) << what;
  ASSERT_EQ(expected.masters.size(), found.masters.size());
  if (std::memcmp(expected.masters.data(), found.masters.data(), found.masters.size() * sizeof(float)) == 0) return;
  for (std::size_t i = 0; i < expected.masters.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(expected.masters[i]), std::bit_cast<std::uint32_t>(found.masters[i]))
        << what << ", element " << i;
  }
}

}  // namespace spillway
