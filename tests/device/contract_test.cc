// What every compute device promises: on `cpu`, on `simulated`, on `cuda` over a fake driver, and on each real
// GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <tuple>

#include "spillway/base/error.h"
#include "spillway/sys/mapping.h"
#include "tests/device/device_kinds.h"

namespace spillway::device {
namespace {

class DeviceContract : public ::testing::TestWithParam<std::tuple<DeviceKind, bool>> {
 protected:
  static constexpr Bytes kBytes = 20 * MiB + 4096;

  void SetUp() override {
    device_ = kind().make();
    device_->register_host(host());
    memory_ = device_->allocate(2 * kBytes);
    const bool for_copies = std::get<bool>(GetParam());
    up_ = for_copies ? device_->make_copy_stream() : device_->make_stream();
    down_ = for_copies ? device_->make_copy_stream() : device_->make_stream();
    compute_ = device_->adopt_stream(nullptr);
  }
  void TearDown() override {
    device_->synchronise();
    for (const auto* name : {"FAKE_CUDA_REGISTERS", "FAKE_CUDA_REGISTERS_KIB"}) ::unsetenv(name);
  }

  [[nodiscard]] static const DeviceKind& kind() { return std::get<DeviceKind>(GetParam()); }
  [[nodiscard]] std::span<std::byte> host() const { return host_.span(); }
  [[nodiscard]] std::span<std::byte> first() const { return host().first(kBytes); }
  [[nodiscard]] std::span<std::byte> second() const { return host().subspan(kBytes, kBytes); }

  void send(std::byte* to, std::span<const std::byte> from) {
    device_->copy(up_, Direction::to_device, to, from.data(), from.size());
  }
  void fetch(std::span<std::byte> to, const std::byte* from) {
    device_->copy(down_, Direction::from_device, to.data(), from, to.size());
  }
  void settle(Stream stream) {
    const auto event = device_->make_event();
    device_->record(event, stream);
    device_->synchronise(event);
    EXPECT_TRUE(device_->done(event));
  }

  static void number(std::span<std::byte> bytes, unsigned seed) {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 4096 + seed);
  }

  const sys::Mapping host_{2 * kBytes};
  std::unique_ptr<Device> device_;
  std::span<std::byte> memory_;
  Stream up_ = 0, down_ = 0, compute_ = 0;
};

TEST_P(DeviceContract, BytesGoThereAndComeBack) {
  number(first(), 1);
  send(memory_.data(), first());
  const auto there = device_->make_event();
  device_->record(there, up_);
  device_->wait(down_, there);
  fetch(second(), memory_.data());
  settle(down_);
  EXPECT_TRUE(std::ranges::equal(first(), second()));
}

TEST_P(DeviceContract, AStreamWaitsForAnEventOfAnother) {
  const auto there = device_->make_event(), back = device_->make_event();
  for (unsigned round = 0; round < 20; ++round) {
    auto* const place = memory_.data() + (round % 2) * kBytes;
    const auto part = first().first(MiB + round * 512), returned = second().first(part.size());
    device_->synchronise(back);  // of the round before: the host may write what was sent
    number(part, round);
    send(place, part);
    device_->record(there, up_);
    device_->wait(down_, there);
    fetch(returned, place);
    device_->record(back, down_);
    device_->wait(up_, back);
    device_->synchronise(back);
    ASSERT_TRUE(std::ranges::equal(part, returned)) << round;
  }
}

TEST_P(DeviceContract, TheCallersStreamComesBetweenCopies) {
  const auto there = device_->make_event(), computed = device_->make_event();
  for (unsigned round = 0; round < 10; ++round) {
    const auto part = first().first(64 * KiB);
    std::ranges::fill(part, std::byte{1});
    send(memory_.data(), part);
    device_->record(there, up_);
    device_->wait(compute_, there);
    device_->fill(compute_, memory_.data(), static_cast<std::uint8_t>(round + 2), part.size() / 2);
    device_->record(computed, compute_);
    device_->wait(down_, computed);
    fetch(part, memory_.data());
    device_->wait(up_, computed);
    settle(down_);
    EXPECT_EQ(part.front(), static_cast<std::byte>(round + 2));
    EXPECT_EQ(part.back(), std::byte{1});
  }
}

TEST_P(DeviceContract, BothDirectionsAtOnceFromThreadsOfTheirOwn) {
  number(first(), 9);
  send(memory_.data() + kBytes, first());
  settle(up_);
  std::thread other([&] {
    fetch(second(), memory_.data() + kBytes);
    settle(down_);
  });
  for (int i = 0; i < 4; ++i) send(memory_.data(), first());
  settle(up_);
  other.join();
  EXPECT_TRUE(std::ranges::equal(first(), second()));
}

TEST_P(DeviceContract, AnEventThatWasNeverRecordedIsDone) {
  const auto event = device_->make_event();
  EXPECT_TRUE(device_->done(event));
  device_->wait(up_, event);
  device_->synchronise(event);
  settle(up_);
}

TEST_P(DeviceContract, WhatIsRefusedIsSaidAndWorksAllTheSame) {
  EXPECT_EQ(device_->notice().empty(), kind().registers);
  if (kind().registers) return;
  EXPECT_NE(device_->notice().find("could not be registered"), std::string::npos) << device_->notice();
}

TEST_P(DeviceContract, TheArenaIsAllocatedOnce) {
  EXPECT_EQ(device_->memory().size(), 2 * kBytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory_.data()) % 256, 0U);
  EXPECT_THROW(device_->allocate(1), Error);
}

TEST_P(DeviceContract, MemoryIsReturnedBeforeTheDeviceGoes) {
  device_->unregister_host(host());
  device_->unregister_host(host());  // is none any more
  number(first().first(4096), 3);
  send(memory_.data(), first().first(4096));  // through the ring now, where there is a link
  settle(up_);
}

std::string name_of_test(const ::testing::TestParamInfo<std::tuple<DeviceKind, bool>>& test) {
  return std::get<DeviceKind>(test.param).name + (std::get<bool>(test.param) ? "_copy_streams" : "");
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceContract,
                         ::testing::Combine(::testing::ValuesIn(device_kinds()), ::testing::Bool()), name_of_test);

}  // namespace
}  // namespace spillway::device
