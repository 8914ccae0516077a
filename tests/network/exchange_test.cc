#include "spillway/network/exchange.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "spillway/network/fake.h"
#include "tests/sys/failing.h"

namespace spillway::network {
namespace {

TEST(Exchange, WaitsUntilTheBytesAreThere) {
  FakeNetwork network(2);
  std::vector<std::byte> out(5, std::byte{7}), in(5);
  std::atomic<int> left = 2;
  std::thread one([&] {
    exchange(network.port(0), {{.peer = 1, .sends = true, .bytes = out}});
    --left;
  });
  std::thread two([&] {
    exchange(network.port(1), {{.peer = 0, .sends = false, .bytes = in}});
    --left;
  });
  while (left > 0) network.move_all();
  one.join();
  two.join();
  EXPECT_EQ(in, out);
}

TEST(Exchange, ThrowsWhatFailed) {
  FakeNetwork network(2);
  network.fail(0, 0, "the cable was pulled");
  std::vector<std::byte> bytes(5);
  EXPECT_ERROR(exchange(network.port(0), {{.peer = 1, .sends = true, .bytes = bytes}}), ErrorCode::io, "cable");
}

TEST(Exchange, BroadcastsToAll) {
  FakeNetwork network(3);
  std::vector<std::vector<std::byte>> bytes(3, std::vector<std::byte>(5));
  bytes[1].assign(5, std::byte{7});
  std::atomic<int> left = 3;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      broadcast(network.port(rank), 1, bytes[rank]);
      --left;
    });
  }
  while (left > 0) network.move_all();
  for (auto& thread : threads) thread.join();
  for (const auto& each : bytes) EXPECT_EQ(each, bytes[1]);
}

}  // namespace
}  // namespace spillway::network
