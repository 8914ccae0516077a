#include "spillway/plan/device_plan.h"

#include <gtest/gtest.h>

#include <numeric>

#include "spillway/base/error.h"
#include "spillway/plan/device_step.h"

namespace spillway::plan {
namespace {

constexpr double kLayer = 233e6;

/// About Qwen2.5-7B on 64 GiB, one GPU of 24 GiB, two drives.
DeviceRequest device_request() {
  DeviceRequest out;
  out.hardware.name = "a workstation";
  out.hardware.cores = 16;
  out.hardware.dram_available = 60 * GiB;
  out.hardware.nodes = {{.capacity = 64 * GiB, .update = 60e9}};
  out.hardware.devices = {
      {.memory = 24 * GiB, .reserved = GiB, .flops = 1e14, .update = 8e11, .to_device = 25e9, .from_device = 25e9}};
  out.hardware.drives = {{.name = "path:0", .read = 6e9, .write = 6e9}, {.name = "path:1", .read = 3e9, .write = 3e9}};
  out.model = {.layers = 28,
               .layer = kLayer,
               .matrix = kLayer,
               .table = 545e6,
               .tables = 2,
               .hidden = 3584,
               .vocabulary = 152064};
  out.work = {.sequence = 4096, .batch = 1, .micro_batches = 1, .query = 3584, .key = 512, .feed_forward = 18944};
  return out;
}

double sum(const Shares& shares) {
  return std::accumulate(shares.begin(), shares.end(), 0.0);
}

void expect_within(const DeviceRequest& asked, const DevicePlacement& place) {
  EXPECT_LE(sum_of(place.device_bytes), static_cast<double>(asked.hardware.devices.front().memory) + 1);
  const auto bound = asked.budget.dram > 0 ? asked.budget.dram : asked.hardware.dram_available;
  double dram = 0;
  for (std::size_t n = 0; n < asked.hardware.nodes.size(); ++n) {
    const auto& node = asked.hardware.nodes[n];
    if (node.cxl) {
      EXPECT_LE(sum_of(place.node_bytes[n]), static_cast<double>(node.capacity) + 1);
    } else {
      dram += sum_of(place.node_bytes[n]);
    }
  }
  EXPECT_LE(dram, static_cast<double>(bound) + 1);
}

/// Bytes of a class over every tier.
double everywhere(const DeviceRequest& asked, const DevicePlacement& place, const char* name) {
  const auto of = [&](const ByClass& classes) { return classes.contains(name) ? classes.at(name) : 0.0; };
  double out = of(place.device_bytes) * static_cast<double>(asked.hardware.devices.size());
  for (const auto& classes : place.node_bytes) out += of(classes);
  for (const auto& classes : place.drive_bytes) out += of(classes);
  return out;
}

TEST(DevicePlacement, EverythingIsSomewhereAndNothingBeyondItsTier) {
  for (const Bytes dram : {12 * GiB, 24 * GiB, 60 * GiB}) {
    for (const double on_device : {0.0, 0.5, 1.0}) {
      for (const auto preference : {Preference::activations, Preference::states}) {
        auto asked = device_request();
        asked.budget.dram = dram;
        asked.budget.durability = Durability::none;
        const auto place_found = place(asked.hardware, asked.model, asked.work, asked.budget, preference, on_device);
        expect_within(asked, place_found);
        const auto n = asked.model.elements();
        EXPECT_NEAR(everywhere(asked, place_found, "state"), n * asked.model.state, 1e3);
        EXPECT_GE(everywhere(asked, place_found, "weight"), n * asked.model.weight - 1e3);
        EXPECT_NEAR(sum(place_found.drives), 1, 1e-9);
        EXPECT_NEAR(place_found.drives[0], 2 * place_found.drives[1], 1e-9) << "dealt by bandwidth";
      }
    }
  }
}

TEST(DevicePlacement, MemoryThatIsThereHoldsWhatSavesMostTrafficPerByteFirst) {
  auto asked = device_request();
  asked.budget.dram = 24 * GiB;
  const auto place_found = place(asked.hardware, asked.model, asked.work, asked.budget, Preference::activations, 0);
  EXPECT_EQ(place_found.weight_path, 0);
  EXPECT_EQ(place_found.border_path, 0);
  EXPECT_GT(place_found.state_path, 0.5);
  EXPECT_EQ(place_found.grad_path, 1);
  EXPECT_TRUE(place_found.durable);
}

TEST(DevicePlacement, StatesAreDealtToNodesByTheirUpdateBandwidth) {
  auto asked = device_request();
  asked.hardware.nodes[0].capacity = asked.hardware.dram_available = 256 * GiB;
  asked.hardware.nodes.push_back({.name = "numa:2", .cxl = true, .capacity = 256 * GiB, .update = 15e9});
  const auto place_found = place(asked.hardware, asked.model, asked.work, asked.budget, Preference::activations, 0);
  EXPECT_FALSE(place_found.on_paths());
  EXPECT_NEAR(place_found.state_nodes[0], 0.8, 1e-9);
  EXPECT_EQ(place_found.grad_nodes[0], 1) << "targets of transfers from the device";
  EXPECT_EQ(place_found.border_nodes[0], 1);
}

/// Several devices are planned as one, so what they take of a card together is what one would: its own rates.
TEST(DevicePlan, AllDevicesTogetherTakeNoMoreOfACardThanItGives) {
  auto asked = device_request();
  asked.hardware.nodes[0].capacity = asked.hardware.dram_available = 256 * GiB;
  asked.hardware.nodes.push_back(
      {.name = "numa:2", .cxl = true, .capacity = 256 * GiB, .update = 15e9, .to_devices = 3e9, .from_devices = 3e9});
  const std::string card = "numa:2 to devices";
  double before = 0;
  for (const std::size_t devices : {1U, 2U, 4U}) {
    asked.hardware.devices.resize(devices, asked.hardware.devices.front());
    const auto placed = place(asked.hardware, asked.model, asked.work, asked.budget, Preference::activations, 0);
    const auto step = play_step(asked.hardware, asked.model, asked.work, placed);
    ASSERT_GT(placed.state_nodes[1], 0.1);
    // Weights come from where their states are; each device without peers fetches them all.
    const auto least = static_cast<double>(devices) * asked.model.layers * asked.model.layer * asked.model.weight *
                       placed.state_nodes[1] / 3e9;
    EXPECT_GE(step.alone.at(card), least * (1 - 1e-9)) << devices;
    EXPECT_GE(step.seconds, step.alone.at(card) * (1 - 1e-6)) << devices;
    EXPECT_GT(step.alone.at(card), 1.5 * before) << devices << " fetch more, and the card is no faster";
    before = step.alone.at(card);
  }
}

TEST(DevicePlacement, AMachineThatCannotHoldItIsToldWhatWouldFit) {
  auto asked = device_request();
  asked.work.sequence = 1 << 20;
  try {
    static_cast<void>(plan_for(asked));
    FAIL() << "a million tokens fit in 24 GiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    EXPECT_NE(std::string(error.what()).find("tokens in a micro-batch"), std::string::npos) << error.what();
  }
  asked = device_request();
  asked.hardware.drives.clear();
  try {
    static_cast<void>(plan_for(asked));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    EXPECT_NE(std::string(error.what()).find("host memory"), std::string::npos) << error.what();
  }
  asked = device_request();
  asked.hardware.drives[0].capacity = asked.hardware.drives[1].capacity = GiB;
  try {
    static_cast<void>(plan_for(asked));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    EXPECT_NE(std::string(error.what()).find("storage paths"), std::string::npos) << error.what();
  }
  asked = device_request();
  asked.hardware.nodes[0].update = 0;
  EXPECT_THROW(static_cast<void>(plan_for(asked)), Error);
}

TEST(DeviceStep, NoResourceIsFasterThanItIs) {
  auto asked = device_request();
  for (const auto micro_batches : {1U, 4U}) {
    asked.work.micro_batches = micro_batches;
    const auto plan = plan_for(asked);
    for (const auto& [name, seconds] : plan.step.alone) EXPECT_LE(seconds, plan.step.seconds * 1.02) << name;
    EXPECT_GT(plan.step.alone.at("compute on gpu:0"), 0);
    EXPECT_EQ(plan.bottleneck, micro_batches == 1 ? "paths" : "compute on gpu:0");
    EXPECT_EQ(plan.next_bottleneck, micro_batches == 1 ? "update on numa:0" : "paths");
  }
}

/// Design, 3.5: weight 6, state 20, gradient 4 bytes a parameter over the paths when everything lies there.
TEST(DeviceStep, BytesOverDrivesAreThoseOfTheDesign) {
  auto asked = device_request();
  asked.model.tables = 0;  // tables are not read for backward
  asked.model.table = 1;
  const DevicePlacement everything{.devices = 1,
                                   .weight_path = 1,
                                   .state_path = 1,
                                   .grad_path = 1,
                                   .state_nodes = {1},
                                   .grad_nodes = {1},
                                   .border_nodes = {1},
                                   .staging_nodes = {1},
                                   .drives = {2.0 / 3, 1.0 / 3},
                                   .durable = true};
  const auto step = play_step(asked.hardware, asked.model, asked.work, everything);
  EXPECT_NEAR((step.read + step.written) / asked.model.elements(), 30, 0.01);
}

TEST(DevicePlan, MoreOfAnythingIsNeverSlower) {
  const auto asked = device_request();
  const auto now = plan_for(asked);
  for (const auto& change : changes(asked)) {
    if (change.what.starts_with("sequences") || change.what.find("GPU") != std::string::npos) continue;
    EXPECT_LE(change.seconds, now.step.seconds * 1.01) << change.what;
    EXPECT_GT(change.seconds, 0) << change.what;
  }
}

TEST(DevicePlan, TheLongestSequenceFitsAndTheNextDoesNot) {
  auto asked = device_request();
  const auto longest = longest_sequence(asked);
  EXPECT_GT(longest, asked.work.sequence);
  asked.work.sequence = longest;
  EXPECT_TRUE(fits(asked));
  asked.work.sequence = longest + 128;
  EXPECT_FALSE(fits(asked));
}

TEST(DevicePlan, AModelThatFitsOnTheDevicesNeverLeavesThem) {
  auto asked = device_request();
  auto& devices = asked.hardware.devices;
  devices.front().memory = 80 * GiB;
  devices.front().peer = 2e11;
  devices.resize(8, devices.front());
  const auto plan = plan_for(asked);
  EXPECT_EQ(plan.placement.device_state, 1);
  EXPECT_FALSE(plan.placement.on_paths());
  EXPECT_EQ(plan.step.written, 0);
  EXPECT_EQ(plan.bottleneck, "compute on devices");
}

TEST(DevicePlan, WithoutADeviceTheCoresComputeAndUpdate) {
  auto asked = device_request();
  asked.hardware.devices.clear();
  asked.hardware.host_flops = 1e12;
  asked.hardware.core_update = 5e9;
  const auto plan = plan_for(asked);
  EXPECT_EQ(plan.bottleneck, "cores");
  EXPECT_EQ(plan.step.up, 0);
  EXPECT_EQ(plan.placement.device_state, 0);
}

TEST(DevicePlan, TheSameTwice) {
  const auto one = plan_for(device_request()), two = plan_for(device_request());
  EXPECT_EQ(one.step.seconds, two.step.seconds);
  EXPECT_EQ(plan_json(device_request()), plan_json(device_request()));
}

}  // namespace
}  // namespace spillway::plan
