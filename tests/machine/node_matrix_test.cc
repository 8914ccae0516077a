#include "spillway/machine/node_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "spillway/sys/nodes.h"
#include "tests/sys/failing.h"

namespace spillway::machine {
namespace {

TEST(NodeMatrixTest, HasEveryPairOfThisMachine) {
  const auto matrix = measure_matrix({.seconds = 0.001, .memory = 32 * MiB});
  const auto machine = sys::nodes();
  const auto with_memory =
      std::ranges::count_if(machine, [](const auto& node) { return node.has_memory() && node.allowed; });
  const auto with_cpus = std::ranges::count_if(machine, [](const auto& node) { return !node.cpus.empty(); });
  EXPECT_LE(static_cast<std::ptrdiff_t>(matrix.size()), with_memory * with_cpus);
  ASSERT_GE(static_cast<std::ptrdiff_t>(matrix.size()), with_memory);
  for (const NodeAccess& access : matrix) {
    for (const Saturation& rate : {access.read, access.write, access.copy, access.update}) {
      EXPECT_GT(rate.thread, 0);
      EXPECT_GE(rate.most, rate.thread);
      EXPECT_GE(rate.threads, 1U);
    }
  }
}

TEST(NodeMatrixTest, TheBestCpusAreThoseWithTheFastestUpdate) {
  const std::vector<NodeAccess> matrix = {{.cpus = 0, .memory = 2, .update = {.most = 5}},
                                          {.cpus = 1, .memory = 2, .update = {.most = 9}},
                                          {.cpus = 1, .memory = 0, .update = {.most = 99}}};
  EXPECT_EQ(best_access(matrix, 2).cpus, 1);
  EXPECT_ERROR((void)best_access(matrix, 3), ErrorCode::internal, "node 3");
}

}  // namespace
}  // namespace spillway::machine
