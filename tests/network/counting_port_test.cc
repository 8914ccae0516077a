// What passes through a port is counted, what leaves the machine apart from the rest.
#include "spillway/network/counting_port.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "spillway/network/fake.h"

namespace spillway::network {
namespace {

TEST(CountingPort, TellsWhatLeavesTheMachineFromTheRest) {
  FakeNetwork network(4);
  std::array<std::byte, 8> sent{}, taken{};
  std::vector<std::unique_ptr<CountingPort>> ports;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    ports.push_back(
        std::make_unique<CountingPort>(std::shared_ptr<Port>(std::shared_ptr<void>{}, &network.port(rank)), 2));
    EXPECT_EQ(ports[rank]->rank(), rank);
    EXPECT_EQ(ports[rank]->size(), 4U);
  }
  const std::span<std::byte> from(sent), to(taken);
  int ended = 0;
  const auto count = [&](const std::exception_ptr& error) { ended += error ? 0 : 1; };
  ports[0]->start({{1, true, from.first(1)}, {2, true, from.first(2)}, {3, true, from.first(5)}}, count);
  ports[1]->start({{0, false, to.first(1)}}, count);
  ports[2]->start({{0, false, to.subspan(1, 2)}}, count);
  ports[3]->start({{0, false, to.subspan(3, 5)}}, count);
  network.move_all();
  EXPECT_EQ(ended, 4);
  const auto of = ports[0]->traffic();
  EXPECT_EQ(of.sent, 8U);
  EXPECT_EQ(of.sent_between, 7U);
  EXPECT_EQ(of.received, 0U);
  EXPECT_EQ(ports[1]->traffic().received, 1U);
  EXPECT_EQ(ports[1]->traffic().received_between, 0U);
  EXPECT_EQ(ports[3]->traffic().received_between, 5U);
  EXPECT_EQ(network.bytes(0, 1), 1U);
  EXPECT_EQ(network.bytes(0, 3), 5U);
  EXPECT_EQ(network.bytes(), 8U);
}

}  // namespace
}  // namespace spillway::network
