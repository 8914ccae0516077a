// The same update as work of a device leaves the same bits as the host's.
#include "spillway/subspace/device_update.h"

#include <gtest/gtest.h>

#include "spillway/subspace/update.h"
#include "tests/subspace/subspace_case.h"

namespace spillway::subspace {
namespace {

constexpr kernels::UpdateStep kTwelfth{.learning_rate = 0.01, .weight_decay = 0.1, .step = 12};

using Records = std::pair<optim::RefitRecord, optim::RefitRecord>;

class DeviceSubspaceUpdateTest : public ::testing::TestWithParam<std::tuple<Records, state::StateFormat, bool>> {
 protected:
  const test::SubspaceCase it{std::get<1>(GetParam()), std::get<2>(GetParam())};
};

TEST_P(DeviceSubspaceUpdateTest, LeavesTheBitsOfTheHost) {
  const auto& [before, after] = std::get<0>(GetParam());
  const auto ours = it.projectors(1, before), given = it.projectors(2, after);
  auto here = it.groups(ours, given), there = here;
  const auto& chunk = it.its_chunk();

  SubspaceUpdate host(it.layout, it.rule());
  host.prepare(chunk, here.at());
  for (std::size_t t = 0; t < host.first_tiles(chunk); ++t) host.run_first(chunk, here.at(), kTwelfth, t);
  for (std::size_t t = 0; t < host.tiles(chunk); ++t) host.run(chunk, here.at(), kTwelfth, t);
  host.finish(chunk, here.at());

  Subspaces subspaces(it.description, it.layout);
  subspaces.restore(it.tensor, ours.data());
  subspaces.begin(11, 1);
  subspaces.note(it.tensor, after);
  subspaces.end(true);
  const auto device = device::make_cpu();
  const auto stream = device->make_stream();
  std::vector<float> delta(it.space().elements());
  DeviceSubspaceUpdate(it.layout, it.rule(), subspaces, delta.data()).run(*device, stream, chunk, there.at(), kTwelfth);
  device->synchronise();

  EXPECT_TRUE(here.weight == there.weight);
  EXPECT_TRUE(here.state == there.state);
  EXPECT_FALSE(it.groups(ours, given) == there);
}

INSTANTIATE_TEST_SUITE_P(Projectors, DeviceSubspaceUpdateTest,
                         ::testing::Combine(::testing::Values(Records{{}, {.refits = 1}},
                                                              Records{{.refits = 1}, {.refits = 1, .samples = 2}},
                                                              Records{{.refits = 1}, {.refits = 2}},
                                                              Records{{.refits = 1}, {.refits = 2, .begun = 12}}),
                                            ::testing::Values(state::StateFormat::exact, state::StateFormat::bf16,
                                                              state::StateFormat::int8),
                                            ::testing::Bool()));

}  // namespace
}  // namespace spillway::subspace
