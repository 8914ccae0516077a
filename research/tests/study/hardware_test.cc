#include "research/study/hardware.h"

#include <gtest/gtest.h>

namespace spillway::study {
namespace {

machine::Profile profile() {
  machine::Profile out;
  out.machine = "there";
  out.nodes = {{0, machine::MemoryKind::dram, 64 * GiB, 4e9, 0, 0},
               {2, machine::MemoryKind::cxl, 128 * GiB, 1e9, 50e9, 35e9}};
  out.gpus = {{"0", 80 * GiB, 1 * GiB, 1e14, 0, 52e9, 51e9, 0}, {"1", 80 * GiB, 1 * GiB, 1e14, 0, 52e9, 51e9, 0}};
  out.paths = {{"0", 6e9, 4e9, 0, 0, 0}, {"1", 3e9, 3e9, 4e9, 0, 7}};
  return out;
}

double rate(const Hardware& hardware, std::size_t devices, bool back, const Shares& nodes) {
  Flow flow;
  const FlowMachine machine(flow, hardware, devices);
  for (std::size_t d = 0; d < devices; ++d) {
    flow.add({.work = 1e9, .uses = back ? machine.from_device(d, nodes) : machine.to_device(d, nodes)});
  }
  return 1e9 / flow.play().seconds;
}

TEST(Hardware, AProfilesElementsAreBytes) {
  const auto hardware = make_hardware(profile());
  EXPECT_EQ(hardware.nodes[1].name, "numa:2");
  EXPECT_DOUBLE_EQ(hardware.nodes[0].update, 26 * 4e9);
  EXPECT_EQ(hardware.devices[1].name, "gpu:1");
}

TEST(Hardware, LinksAreBoundedByWhatIsAtTheirEnds) {
  const auto hardware = make_hardware(profile());
  EXPECT_NEAR(rate(hardware, 1, false, {1, 0}), 52e9, 1);
  EXPECT_NEAR(rate(hardware, 1, false, {0, 1}), 50e9, 1);
  EXPECT_NEAR(rate(hardware, 2, false, {0, 1}), 25e9, 1) << "two GPUs share a card";
  EXPECT_NEAR(rate(hardware, 2, false, {1, 0}), 52e9, 1) << "and not DRAM, of which no ceiling is known";
  EXPECT_NEAR(rate(hardware, 1, true, {0, 1}), 35e9, 1);
  EXPECT_NEAR(rate(hardware, 2, true, {0.5, 0.5}), 35e9, 1) << "half of each";
}

TEST(Hardware, ADriveMovesItsMixedRateInBothDirections) {
  const auto hardware = make_hardware(profile());
  EXPECT_DOUBLE_EQ(mixed_rate(hardware.drives[1]), 4e9);
  EXPECT_DOUBLE_EQ(mixed_rate(hardware.drives[0]), 2 / (1 / 6e9 + 1 / 4e9));
  Flow flow;
  const FlowMachine machine(flow, hardware, 0);
  const auto place = all_at(1, 2);
  flow.add({.work = 2e9, .uses = machine.read(place)});
  flow.add({.work = 2e9, .uses = machine.write(place)});
  EXPECT_NEAR(flow.play().seconds, 1, 1e-9);
}

TEST(Hardware, AnUpdateDistributedByBandwidthTakesTheSumOfBandwidths) {
  const auto hardware = make_hardware(profile());
  const auto seconds = [&](const Shares& shares) {
    Flow flow;
    const FlowMachine machine(flow, hardware, 0);
    flow.add({.work = 26e9, .uses = machine.update(shares)});
    return flow.play().seconds;
  };
  EXPECT_DOUBLE_EQ(seconds({1, 0}), 0.25);
  EXPECT_DOUBLE_EQ(seconds({0.5, 0.5}), 0.5);
  EXPECT_DOUBLE_EQ(seconds({0.8, 0.2}), 0.2) << "20 % faster than DRAM alone";
}

}  // namespace
}  // namespace spillway::study
