#include "study/hardware.h"

#include <gtest/gtest.h>

namespace spillway::study {
namespace {

machine::Profile profile() {
  machine::Profile out;
  out.machine = "there";
  out.cores = 8;
  out.dram_total = 64 * GiB;
  out.dram_available = 60 * GiB;
  out.nodes = {{0, false, 64 * GiB, 4e9, 0, 0}, {2, true, 128 * GiB, 1e9, 50e9, 35e9}};
  out.gpus = {{"0", 80 * GiB, 1 * GiB, 1e14, 0, 52e9, 51e9, 0}, {"1", 80 * GiB, 1 * GiB, 1e14, 0, 52e9, 51e9, 0}};
  out.paths = {{"0", 6e9, 4e9, 0, 0, 0}, {"1", 3e9, 3e9, 4e9, 0, 7}};
  out.update_elements_per_second = 1e9;
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
  EXPECT_EQ(hardware.memory(true), 128 * GiB);
  EXPECT_EQ(hardware.drives[1].capacity, 7U);
  EXPECT_EQ(hardware.core_update, 0) << "a GPU computes, so all cores can update";
}

TEST(Hardware, AProfileWithoutNodesHasOne) {
  auto plain = profile();
  plain.nodes.clear();
  plain.gpus.clear();
  const auto hardware = make_hardware(plain);
  ASSERT_EQ(hardware.nodes.size(), 1U);
  EXPECT_EQ(hardware.nodes[0].name, "dram");
  EXPECT_DOUBLE_EQ(hardware.nodes[0].update, 26 * 8e9);
  EXPECT_DOUBLE_EQ(hardware.core_update, 26e9);
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

TEST(Hardware, LearningTakesTheCoresOrTheMemory) {
  auto hardware = make_hardware(profile());
  const double work = 26e9 * hardware.cores;  // a second of all cores
  const auto seconds = [&](double memory) {
    Flow flow;
    const FlowMachine machine(flow, hardware, 1);
    flow.add({.work = work, .uses = machine.fit({1, 0}, memory)});
    return flow.play().seconds;
  };
  EXPECT_NEAR(seconds(0.1), 1, 1e-9);
  EXPECT_NEAR(seconds(1), work / hardware.nodes[0].update, 1e-9);
  hardware.core_fit = 0;
  EXPECT_NEAR(seconds(0.1), work / hardware.nodes[0].update, 1e-9) << "nothing is known of a core";
}

TEST(Hardware, AnUpdateDealtByBandwidthTakesTheSumOfBandwidths) {
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
