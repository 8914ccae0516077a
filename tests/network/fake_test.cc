#include "spillway/network/fake.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "spillway/base/error.h"

namespace spillway::network {
namespace {

std::string words_of(const std::exception_ptr& error) {
  if (!error) return "well";
  try {
    std::rethrow_exception(error);
  } catch (const Error& found) {
    return found.what();
  }
}

/// Every rank gives each other one its numbers, several times, whatever the order of arrival.
TEST(FakeNetwork, BringsWhatWasSentInOrderBetweenTwoRanks) {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    const std::size_t size = 2 + seed % 4, rounds = 3;
    FakeNetwork network(size, seed);
    const auto value = [&](std::size_t from, std::size_t to, std::size_t round) {
      return static_cast<std::byte>(from * 50 + to * 7 + round);
    };
    std::vector<std::vector<std::byte>> out(size), in(size);
    std::vector<std::size_t> ended(size, 0);
    for (std::size_t rank = 0; rank < size; ++rank) {
      out[rank].resize(rounds * size);
      in[rank].resize(rounds * size);
      for (std::size_t round = 0; round < rounds; ++round) {
        std::vector<Message> messages;
        for (std::size_t peer = 0; peer < size; ++peer) {
          if (peer == rank) continue;
          const auto at = round * size + peer;
          out[rank][at] = value(rank, peer, round);
          messages.push_back({.peer = peer, .sends = true, .bytes = std::span(out[rank]).subspan(at, 1)});
          messages.push_back({.peer = peer, .sends = false, .bytes = std::span(in[rank]).subspan(at, 1)});
        }
        network.port(rank).start(std::move(messages), [&ended, rank](const std::exception_ptr& error) {
          EXPECT_EQ(words_of(error), "well");
          ++ended[rank];
        });
      }
    }
    network.move_all();
    EXPECT_EQ(network.under_way(), 0U);
    EXPECT_EQ(network.bytes(), size * (size - 1) * rounds);
    for (std::size_t rank = 0; rank < size; ++rank) {
      EXPECT_EQ(ended[rank], rounds);
      for (std::size_t round = 0; round < rounds; ++round) {
        for (std::size_t peer = 0; peer < size; ++peer) {
          if (peer == rank) continue;
          EXPECT_EQ(in[rank][round * size + peer], value(peer, rank, round));
        }
      }
    }
  }
}

TEST(FakeNetwork, FailsTheTransferThatItIsToldTo) {
  FakeNetwork network(2);
  std::vector<std::byte> bytes(4);
  std::vector<std::string> found;
  const auto note = [&](const std::exception_ptr& error) { found.push_back(words_of(error)); };
  network.fail(0, 1, "the cable was pulled");
  for (int i = 0; i < 2; ++i) network.port(0).start({{.peer = 1, .sends = true, .bytes = bytes}}, note);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found.front().find("the cable was pulled"), std::string::npos);
  EXPECT_EQ(network.under_way(), 1U);
}

TEST(FakeNetwork, TellsWhoeverWaitsForARankThatIsGone) {
  FakeNetwork network(3);
  std::vector<std::byte> bytes(4);
  std::vector<std::string> found;
  const auto note = [&](const std::exception_ptr& error) { found.push_back(words_of(error)); };
  network.port(0).start({{.peer = 1, .sends = false, .bytes = bytes}, {.peer = 2, .sends = true, .bytes = bytes}},
                        note);
  network.port(2).start({{.peer = 0, .sends = false, .bytes = bytes}}, note);
  network.lose(1);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found.front().find("rank 1 is gone"), std::string::npos);
  EXPECT_FALSE(network.move());
  network.port(2).start({{.peer = 1, .sends = true, .bytes = bytes}}, note);
  EXPECT_NE(found.back().find("rank 1 is gone"), std::string::npos);
}

}  // namespace
}  // namespace spillway::network
