// The fake driver's account of races: each edge of the order is needed, and a missing one is named, whatever the
// timing.
#include "tests/device/race_watch.h"

#include <gtest/gtest.h>

#include "spillway/base/error.h"
#include "spillway/sys/mapping.h"
#include "tests/device/fake_driver.h"

namespace spillway::device {
namespace {

constexpr Bytes kPiece = 64 * KiB;

class RaceWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_->register_host(host_.span());
    memory_ = device_->allocate(4 * kPiece);
    up_ = device_->make_stream();
    down_ = device_->make_stream();
    compute_ = device_->adopt_stream(nullptr);
    arrived_ = device_->make_event();
    computed_ = device_->make_event();
  }
  void TearDown() override { device_->synchronise(); }

  void send(int part = 0) {
    device_->copy(up_, Direction::to_device, memory_.data(), host_.span().data() + part * kPiece, kPiece);
  }
  void fetch(int part = 1) {
    device_->copy(down_, Direction::from_device, host_.span().data() + part * kPiece, memory_.data(), kPiece);
  }

  /// Bytes go up, are summed there, and come back, which the host waits for; again and again.
  void cycle() {
    auto* const sums = reinterpret_cast<float*>(memory_.data());
    for (int round = 0; round < 3; ++round) {
      device_->wait(up_, computed_);
      send();
      device_->record(arrived_, up_);
      device_->wait(compute_, arrived_);
      device_->run(compute_, Sum{.type = Element::fp32, .values = memory_.data() + kPiece, .sum = sums, .n = 100});
      device_->record(computed_, compute_);
      device_->wait(down_, computed_);
      fetch();
      device_->record(arrived_, down_);
      device_->synchronise(arrived_);
    }
  }

  /// The message of the race that a cycle with this edge left out is refused for; empty: there was none.
  std::string cycle_without(const char* edge) {
    const Setting drop("FAKE_CUDA_DROP", edge);
    try {
      cycle();
    } catch (const Error& error) {
      device_->synchronise();
      EXPECT_EQ(error.code(), ErrorCode::io);
      return error.what();
    }
    return {};
  }

  const Setting fails_{"FAKE_CUDA_RACES", "fail"};
  const sys::Mapping host_{4 * kPiece};
  const std::unique_ptr<Device> device_ = make_fake_cuda();
  std::span<std::byte> memory_;
  Stream up_ = 0, down_ = 0, compute_ = 0;
  Event arrived_ = 0, computed_ = 0;
};

TEST_F(RaceWatchTest, AWholeOrderIsNoRace) {
  EXPECT_EQ(cycle_without("none:1"), "");
  EXPECT_EQ(fake_calls("wait"), 9);
  EXPECT_EQ(fake_calls("record"), 9);
  EXPECT_EQ(fake_calls("synchronise"), 3);
}

TEST_F(RaceWatchTest, ALeftOutWaitIsNamedWithBothOperations) {
  const auto race = cycle_without("wait:2");
  EXPECT_NE(race.find("the GPU failed in cuLaunchKernel: a race, spillway_sum_fp32 (stream "), std::string::npos)
      << race;
  EXPECT_NE(race.find("which writes 400 bytes"), std::string::npos) << race;
  EXPECT_NE(race.find("has no order with copy to the device (stream "), std::string::npos) << race;
  EXPECT_NE(race.find("which writes 65536 bytes"), std::string::npos) << race;
  EXPECT_NE(race.find(fake_race()), std::string::npos) << fake_race();
}

/// The first wait of a cycle, for the kernel of the one before, is not needed: the host has waited for its copy back.
TEST_F(RaceWatchTest, ARedundantWaitIsNoRace) {
  EXPECT_EQ(cycle_without("wait:1"), "");
  EXPECT_EQ(cycle_without("wait:4"), "");
  EXPECT_EQ(cycle_without("wait:7"), "");
}

TEST_F(RaceWatchTest, EachOtherEdgeIsNeeded) {
  for (const char* edge :
       {"wait:2", "wait:3", "wait:5", "wait:6", "wait:8", "wait:9", "record:1", "record:2", "record:3", "record:4",
        "record:5", "record:6", "record:7", "record:8", "synchronise:1", "synchronise:2"}) {
    EXPECT_NE(cycle_without(edge), "") << edge;
  }
}

/// The copy to the device has long ended when the host has waited for another stream so often.
TEST_F(RaceWatchTest, TimeIsNoOrder) {
  send();
  for (int i = 0; i < 50; ++i) {
    device_->copy(down_, Direction::from_device, host_.span().data() + kPiece, memory_.data() + kPiece, kPiece);
    device_->record(arrived_, down_);
    device_->synchronise(arrived_);
  }
  EXPECT_THROW(fetch(), Error);
}

TEST_F(RaceWatchTest, ABufferOfTheHostIsPartOfIt) {
  send(0);
  const auto event = device_->make_event();
  device_->record(event, up_);
  device_->fill(down_, memory_.data() + kPiece, 1, kPiece);
  // The copy from the device would overwrite what another stream may still read.
  EXPECT_THROW(device_->copy(down_, Direction::from_device, host_.span().data(), memory_.data() + kPiece, kPiece),
               Error);
  device_->synchronise(event);
  EXPECT_NO_THROW(device_->copy(down_, Direction::from_device, host_.span().data(), memory_.data() + kPiece, kPiece));
}

TEST(RaceWatchDeathTest, ARaceEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        const sys::Mapping host(kPiece);
        const auto device = make_fake_cuda();
        device->register_host(host.span());
        auto* const memory = device->allocate(kPiece).data();
        device->copy(device->make_stream(), Direction::to_device, memory, host.span().data(), kPiece);
        device->fill(device->make_stream(), memory, 0, 1);
      },
      "a race on the fake GPU: fill \\(stream [0-9]+\\), which writes 1 bytes");
}

}  // namespace
}  // namespace spillway::device
