// Streams of copies whose host memory is not registered, or is in part: order, events, errors and ends as with
// registered memory, and no copy that blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <random>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/device/staging_ring.h"
#include "spillway/sys/mapping.h"
#include "tests/device/fake_driver.h"

namespace spillway::device {
namespace {

void write_numbers(std::span<std::byte> bytes, std::size_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 4096 + seed * 7);
}

bool equal_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::ranges::equal(a, b);
}

/// Both directions through places of the device that are used in turn.
class Exchange {
 public:
  static constexpr std::size_t kPlaces = 3;
  static constexpr Bytes kPlace = 10 * MiB;  ///< two pieces of staging buffers

  /// Of each 3 MiB of host memory, the first `registered` MiB are registered.
  Exchange(std::unique_ptr<Device> device, Bytes registered) : device_(std::move(device)) {
    for (Bytes at = 0; registered > 0 && at + 3 * MiB <= host_.span().size(); at += 3 * MiB) {
      EXPECT_TRUE(device_->register_host(host_.span().subspan(at, registered * MiB)));
    }
    memory_ = device_->allocate(kPlaces * kPlace);
    up_ = device_->make_copy_stream();
    down_ = device_->make_copy_stream();
    for (auto* events : {&sent_, &fetched_}) {
      for (auto& event : *events) event = device_->make_event();
    }
  }

  /// Sizes from a byte to a place, at offsets of any alignment.
  void run(int rounds, std::mt19937& random) {
    std::array<std::pair<Bytes, Bytes>, kPlaces> parts{};
    for (int round = 0; round < rounds; ++round) {
      const auto place = static_cast<std::size_t>(round) % kPlaces;
      if (round >= static_cast<int>(kPlaces)) check(place, parts[place]);
      const auto most = random() % 3 == 0 ? kPlace : Bytes{1} << (random() % 22);
      const auto bytes = 1 + random() % most, at = random() % (kPlace - bytes + 1);
      parts[place] = {at, bytes};
      write_numbers(source(place).subspan(at, bytes), static_cast<std::size_t>(round));
      device_->wait(up_, fetched_[place]);
      device_->copy(up_, Direction::to_device, there(place) + at, source(place).data() + at, bytes);
      device_->record(sent_[place], up_);
      device_->wait(down_, sent_[place]);
      device_->copy(down_, Direction::from_device, target(place).data() + at, there(place) + at, bytes);
      device_->record(fetched_[place], down_);
    }
    for (std::size_t place = 0; place < kPlaces; ++place) check(place, parts[place]);
    device_->synchronise();
  }

 private:
  [[nodiscard]] std::span<std::byte> source(std::size_t place) const {
    return host_.span().subspan(2 * place * kPlace, kPlace);
  }
  [[nodiscard]] std::span<std::byte> target(std::size_t place) const {
    return host_.span().subspan((2 * place + 1) * kPlace, kPlace);
  }
  [[nodiscard]] std::byte* there(std::size_t place) const { return memory_.data() + place * kPlace; }

  void check(std::size_t place, const std::pair<Bytes, Bytes>& part) {
    device_->synchronise(fetched_[place]);
    EXPECT_TRUE(device_->done(fetched_[place]));
    const auto [at, bytes] = part;
    ASSERT_TRUE(equal_bytes(source(place).subspan(at, bytes), target(place).subspan(at, bytes)))
        << bytes << " at " << at;
    std::ranges::fill(target(place).subspan(at, bytes), std::byte{0});
  }

  const sys::Mapping host_{2 * kPlaces * kPlace};
  const std::unique_ptr<Device> device_;
  std::span<std::byte> memory_;
  Stream up_ = 0, down_ = 0;
  std::array<Event, kPlaces> sent_{}, fetched_{};
};

TEST(StagedCopies, CopiesOfManySizesArriveInOrder) {
  std::mt19937 random(17);
  for (const Bytes registered : {0, 1, 2}) {
    SCOPED_TRACE(::testing::Message() << registered << " of 3 MiB registered");
    Exchange(make_simulated({.seed = 3 + registered}), registered).run(25, random);
    Exchange(make_simulated({.to_device = 4e9, .from_device = 2e9}), registered).run(25, random);
    Exchange(make_fake_cuda(), registered).run(25, random);
  }
}

/// Bytes of a host that is never registered, and a device's memory of the same size.
class StagedStream : public ::testing::Test {
 protected:
  static constexpr Bytes kBytes = (StagingRing::kSlots + 2) * kGoodCopy;

  void open(std::unique_ptr<Device> device) {
    device_ = std::move(device);
    memory_ = device_->allocate(kBytes);
    up_ = device_->make_copy_stream();
    down_ = device_->make_copy_stream();
    write_numbers(host_.span(), 5);
  }
  void send(Bytes bytes) { device_->copy(up_, Direction::to_device, memory_.data(), host_.span().data(), bytes); }
  void fetch(Bytes bytes) { device_->copy(down_, Direction::from_device, back_.span().data(), memory_.data(), bytes); }
  Event record(Stream stream, const Given& given = {}) {
    const auto event = device_->make_event();
    device_->record(event, stream, given);
    return event;
  }
  [[nodiscard]] bool came_back(Bytes bytes) const {
    return equal_bytes(host_.span().first(bytes), back_.span().first(bytes));
  }

  const sys::Mapping host_{kBytes}, back_{kBytes};
  std::unique_ptr<Device> device_;
  std::span<std::byte> memory_;
  Stream up_ = 0, down_ = 0;
};

/// The device's streams are held up, and more is copied than the staging buffers hold.
TEST_F(StagedStream, ACopyReturnsBeforeTheStreamComesToIt) {
  auto simulated = make_simulated({});
  auto& device = *simulated;
  open(std::move(simulated));
  std::promise<void> gate;
  const auto gated = device.make_stream();
  device.call(gated, [opened = gate.get_future().share()] { opened.wait(); });
  const auto opened = record(gated);
  device.wait(up_, opened);
  send(kBytes);
  const auto sent = record(up_);
  device.wait(down_, sent);
  fetch(kBytes);
  const auto fetched = record(down_);
  EXPECT_FALSE(device.done(sent));
  EXPECT_FALSE(device.done(fetched));
  gate.set_value();
  device.synchronise(fetched);
  EXPECT_TRUE(came_back(kBytes));
}

TEST_F(StagedStream, ARecordIsToldOnceAndBeforeItsWaitReturns) {
  open(make_simulated({.seed = 8}));
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> token_sum = 0;
    const auto tell = [](void* context, std::uint64_t token) noexcept {
      *static_cast<std::atomic<int>*>(context) += static_cast<int>(token);
    };
    send(64 * KiB);
    const auto sent = record(up_, {tell, &token_sum, 1});
    device_->wait(down_, sent);
    fetch(64 * KiB);
    const auto fetched = record(down_, {tell, &token_sum, 100});
    device_->synchronise(fetched);
    ASSERT_EQ(token_sum, 101);
    ASSERT_TRUE(came_back(64 * KiB));
    std::ranges::fill(back_.span().first(64 * KiB), std::byte{0});
  }
}

/// As a schedule does in its next instance, however far the ring is behind.
TEST_F(StagedStream, AnEventIsRecordedAgainWhileARingWaitsForIt) {
  open(make_simulated({.seed = 9}));
  const auto compute = device_->make_stream();
  const auto computed = device_->make_event();
  for (int round = 0; round < 40; ++round) {
    const auto value = static_cast<std::uint8_t>(round + 1);
    const auto at = static_cast<Bytes>(round) * 4 * KiB;
    device_->fill(compute, memory_.data() + at, value, 4 * KiB);
    device_->record(computed, compute);
    device_->wait(down_, computed);
    device_->copy(down_, Direction::from_device, back_.span().data() + at, memory_.data() + at, 4 * KiB);
  }
  device_->synchronise();
  for (int round = 0; round < 40; ++round) {
    const auto part = back_.span().subspan(static_cast<Bytes>(round) * 4 * KiB, 4 * KiB);
    ASSERT_TRUE(std::ranges::all_of(part, [&](auto it) { return it == static_cast<std::byte>(round + 1); })) << round;
  }
}

TEST_F(StagedStream, WhatFailsIsThrownByWaitsForLaterRecordsAlone) {
  open(make_fake_cuda());
  send(4 * KiB);
  const auto before = record(up_);
  device_->synchronise(before);
  {
    const Setting fails("FAKE_CUDA_FAILS_AFTER", "2");
    send(4 * KiB);
    send(4 * KiB);  // this one
    send(4 * KiB);
    const auto after = record(up_);
    try {
      device_->synchronise(after);
      FAIL() << "went on";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_NE(std::string(error.what()).find("cuMemcpyHtoDAsync"), std::string::npos) << error.what();
    }
    EXPECT_THROW(static_cast<void>(device_->done(after)), Error);
    device_->wait(down_, after);
    EXPECT_THROW(device_->synchronise(record(down_)), Error);
  }
  EXPECT_NO_THROW(device_->synchronise(before));
  EXPECT_THROW(device_->synchronise(), Error);
}

TEST_F(StagedStream, ADeviceThatGoesEndsItsCopiesFirst) {
  for (const bool fake : {false, true}) {
    open(fake ? make_fake_cuda() : make_simulated({.seed = 10}));
    std::ranges::fill(back_.span(), std::byte{0});
    send(3 * kGoodCopy);
    device_->wait(down_, record(up_));
    fetch(3 * kGoodCopy);
    device_.reset();
    EXPECT_TRUE(came_back(3 * kGoodCopy)) << fake;
  }
}

/// Each wait for a staging buffer is left out in one run: a buffer that is used before its copy has ended is a race.
class LeftOutWait : public StagedStream {
 protected:
  struct Run {
    std::string race;
    bool same = false;
    int waits = 0;
  };

  Run copy_without(int wait) {
    const Setting fails("FAKE_CUDA_RACES", "fail");
    const Setting drop("FAKE_CUDA_DROP", text("synchronise:", wait).c_str());
    open(make_fake_cuda());
    constexpr Bytes kEach = 4 * KiB;
    for (Bytes i = 0; i < kCopies; ++i) {
      device_->copy(up_, Direction::to_device, memory_.data() + i * kEach, host_.span().data() + i * kEach, kEach);
    }
    device_->wait(down_, record(up_));
    for (Bytes i = 0; i < kCopies; ++i) {
      device_->copy(down_, Direction::from_device, back_.span().data() + i * kEach, memory_.data() + i * kEach, kEach);
    }
    const auto ended = record(down_);
    Run out;
    try {
      device_->synchronise(ended);
      out.same = came_back(kCopies * kEach);
    } catch (const Error&) {  // refused: a race
    }
    out.race = fake_race();
    out.waits = fake_calls("synchronise");
    device_.reset();
    return out;
  }

  static constexpr Bytes kCopies = 2 * StagingRing::kSlots;
};

TEST_F(LeftOutWait, ABufferThatIsUsedTooEarlyIsNamed) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "races on purpose: not under the thread sanitizer";
#endif
  const auto whole = copy_without(0);
  EXPECT_EQ(whole.race, "");
  EXPECT_TRUE(whole.same);
  int raced = 0;
  for (int wait = 1; wait <= whole.waits; ++wait) {
    const auto run = copy_without(wait);
    if (run.race.empty()) {
      EXPECT_TRUE(run.same) << "wrong bits and no race without wait " << wait;
      continue;
    }
    ++raced;
    EXPECT_NE(run.race.find("the host, which touches staging memory"), std::string::npos) << run.race;
  }
  EXPECT_GE(raced, static_cast<int>(StagingRing::kSlots)) << "of " << whole.waits;
}

}  // namespace
}  // namespace spillway::device
