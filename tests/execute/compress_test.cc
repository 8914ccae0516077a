// Factors of a gradient by the projectors that hold now, wherever passes compute.
#include "spillway/subspace/compress.h"

#include <gtest/gtest.h>

#include "spillway/execute/resources.h"
#include "tests/execute/planned.h"
#include "tests/subspace/subspace_case.h"

namespace spillway::execute {
namespace {

constexpr std::size_t kTokens = 5;

class CompressTest : public ::testing::TestWithParam<bool> {
 protected:
  CompressTest()
      : planned({.shape = {.layers = 1, .embedding = false, .head = false, .tied = false, .subspace = "up"},
                 .placement = {1, 1, 1, 1},
                 .durability = plan::Durability::none,
                 .paths = 0,
                 .device = GetParam()}),
        resources(planned.run_plan(), 1, {}),
        subspaces(planned.description, planned.layout),
        compress(planned.layout, planned.description.computes(), subspaces, resources.arithmetic()) {}

  void wait() {
    if (resources.device() != nullptr) resources.device()->synchronise();
  }
  /// What the kernel makes of the rows in `in`.
  [[nodiscard]] std::vector<std::uint16_t> expected(unsigned side, const std::uint16_t* in) {
    const auto projector = subspaces.side(it.tensor, side);
    std::vector<std::uint16_t> out(projector.columns * kTokens);
    std::vector<float> work(kernels::compress_work(projector));
    kernels::compress(projector, in, projector.rows, kTokens, out.data(), kTokens, work.data());
    return out;
  }

  const subspace::test::SubspaceCase it;
  const test::Planned planned;
  Resources resources;
  subspace::Subspaces subspaces;
  subspace::Compress compress;
};

TEST_P(CompressTest, FollowsTheProjectors) {
  const auto memory = resources.computing();
  auto* const in = reinterpret_cast<std::uint16_t*>(memory.data());
  auto* const out = memory.data() + 64 * KiB;
  for (std::size_t i = 0; i < kTokens * 96; ++i) in[i] = static_cast<std::uint16_t>(0x3f00 + i % 128);
  std::vector<std::uint16_t> last;
  for (const std::uint64_t seed : {1, 2}) {
    subspaces.restore(it.tensor, it.projectors(seed, {.refits = 1}).data());
    for (unsigned side = 0; side < 2; ++side) {
      const auto from = subspaces.side(it.tensor, side);
      compress.run(it.tensor, side, memory.data(), from.rows, kTokens, out);
      wait();
      std::vector<std::uint16_t> found(from.columns * kTokens);
      std::memcpy(found.data(), out, found.size() * sizeof(found[0]));
      EXPECT_EQ(found, expected(side, in)) << "pair " << seed << ", side " << side;
      EXPECT_NE(found, last);
      last = found;
    }
  }
}

TEST_P(CompressTest, TheHostIsToldWhatAPassHasLeft) {
  const std::span values(reinterpret_cast<float*>(resources.computing().data()), 100);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto here = compress.here(values);
  EXPECT_TRUE(std::ranges::equal(here, values));
  EXPECT_EQ(here.data() == values.data(), !GetParam()) << "on the host nothing is copied";
  std::vector<float> fetched(values.size());
  compress.fetch(values, fetched);
  wait();
  EXPECT_TRUE(std::ranges::equal(fetched, values));
}

INSTANTIATE_TEST_SUITE_P(Where, CompressTest, ::testing::Values(false, true),
                         [](const auto& it) { return it.param ? "OnADevice" : "OnTheHost"; });

}  // namespace
}  // namespace spillway::execute
