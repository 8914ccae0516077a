// What the simulated device promises beyond the contract.
#include "spillway/device/simulated.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "spillway/base/error.h"
#include "spillway/sys/mapping.h"

namespace spillway::device {
namespace {

TEST(Simulated, MoreThanItsMemoryIsRefusedWithBothNumbers) {
  const auto device = make_simulated({.memory = 3 * MiB});
  try {
    device->allocate(4 * MiB);
    FAIL() << "allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    const std::string words = error.what();
    EXPECT_NE(words.find(human(3 * MiB)), std::string::npos) << words;
    EXPECT_NE(words.find(human(4 * MiB)), std::string::npos) << words;
  }
  EXPECT_EQ(device->allocate(3 * MiB).size(), 3 * MiB);
}

TEST(Simulated, MemoryIsPoisonUntilSomethingIsCopiedThere) {
  const auto device = make_simulated({});
  const auto memory = device->allocate(64 * KiB);
  EXPECT_TRUE(std::ranges::all_of(memory, [](auto byte) { return byte == std::byte{kPoison}; }));
}

TEST(Simulated, ACopyUnderWayIsPoison) {
  const auto device = make_simulated({.to_device = 1e5});  // a second and more
  const auto memory = device->allocate(1 * MiB);
  std::memset(memory.data(), 0, memory.size());
  const sys::Mapping host(128 * KiB);
  device->register_host(host.span());
  const auto stream = device->make_stream();
  const auto began = device->make_event();
  device->call(stream, [&] { memory.back() = std::byte{7}; });
  device->record(began, stream);
  device->synchronise(began);
  EXPECT_EQ(memory.back(), std::byte{7});
  EXPECT_EQ(memory.front(), std::byte{0});
}

/// A registered arena whose second half is a slow node: its copies take the node's time, and hold up those behind them.
TEST(Simulated, CopiesOfASlowNodeTakeItsTimeAndHoldTheLink) {
  constexpr Bytes kPart = 256 * KiB, kHalf = 4 * kPart;
  constexpr double kLink = 40e6, kUp = 4e6, kDown = 8e6;
  const auto device = make_simulated({.to_device = kLink, .from_device = kLink});
  const auto memory = device->allocate(kPart);
  const sys::Mapping arena(2 * kHalf);
  ASSERT_TRUE(device->register_host(arena.span()));
  device->limit(arena.span().subspan(kHalf), kUp, kDown);
  const auto stream = device->make_stream();
  const auto first = device->make_timed_event(), last = device->make_timed_event();
  const auto seconds = [&](Direction direction, Bytes from, Bytes to) {
    device->record(first, stream);
    for (auto at = from; at < to; at += kPart) {
      auto* const host = arena.span().data() + at;
      const bool up = direction == Direction::to_device;
      device->copy(stream, direction, up ? memory.data() : host, up ? host : memory.data(), kPart);
    }
    device->record(last, stream);
    device->synchronise(last);
    return device->seconds_between(first, last);
  };
  const auto half = static_cast<double>(kHalf);
  const auto near = seconds(Direction::to_device, 0, kHalf);
  EXPECT_GE(near, half / kLink);
  EXPECT_LT(near, half / kUp) << "the first half is as fast as the link";
  EXPECT_GE(seconds(Direction::to_device, kHalf, 2 * kHalf), half / kUp);
  EXPECT_GE(seconds(Direction::from_device, kHalf, 2 * kHalf), half / kDown);
  EXPECT_GE(seconds(Direction::to_device, 0, 2 * kHalf), half / kLink + half / kUp);
}

TEST(Simulated, WhatFailsInAStreamIsThrownByTheNextWait) {
  const auto device = make_simulated({});
  const auto stream = device->make_stream();
  const auto event = device->make_event();
  device->call(stream, [] { throw Error(ErrorCode::io, "the kernel fell over"); });
  device->record(event, stream);
  EXPECT_THROW(device->synchronise(event), Error);
  EXPECT_THROW(device->synchronise(), Error);
}

/// Rounds through a window of two places, in the pattern of a step: send, compute, fetch, reuse.
void rounds(std::uint64_t seed) {
  const auto device = make_simulated({.seed = seed, .longest_delay = 5e-5});
  constexpr Bytes kPart = 8 * KiB;
  constexpr unsigned kRounds = 12;
  const auto memory = device->allocate(2 * kPart);
  const sys::Mapping host(2 * kRounds * kPart);
  device->register_host(host.span());
  const auto up = device->make_stream(), down = device->make_stream(), compute = device->make_stream();
  std::vector<Event> sent, computed, fetched;
  for (unsigned r = 0; r < kRounds; ++r) {
    for (auto* list : {&sent, &computed, &fetched}) list->push_back(device->make_event());
  }
  const auto source = host.span().first(kRounds * kPart), target = host.span().subspan(kRounds * kPart);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i % 251);
  for (unsigned r = 0; r < kRounds; ++r) {
    auto* const place = memory.data() + (r % 2) * kPart;
    if (r >= 2) device->wait(up, fetched[r - 2]);
    device->copy(up, Direction::to_device, place, source.data() + r * kPart, kPart);
    device->record(sent[r], up);
    device->wait(compute, sent[r]);
    device->call(compute, [place] {
      for (Bytes i = 0; i < kPart; ++i) place[i] = static_cast<std::byte>(static_cast<unsigned>(place[i]) + 1);
    });
    device->record(computed[r], compute);
    device->wait(down, computed[r]);
    device->copy(down, Direction::from_device, target.data() + r * kPart, place, kPart);
    device->record(fetched[r], down);
  }
  device->synchronise(fetched.back());
  for (std::size_t i = 0; i < source.size(); ++i) {
    ASSERT_EQ(target[i], static_cast<std::byte>(i % 251 + 1)) << "seed " << seed << ", byte " << i;
  }
}

TEST(Simulated, EventsKeepTheOrderWhateverTheDelays) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) rounds(seed);
}

}  // namespace
}  // namespace spillway::device
