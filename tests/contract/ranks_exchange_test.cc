// What several processes send each other, save together and are refused.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/ranks.h"
#include "tests/sys/failing.h"

namespace spillway {
namespace {

using plan::test::describe;

TEST(Ranks, OnTwoMachinesSendBetweenThemWhatTwoProcessesWould) {
  const auto description = describe(test::shape_of({.layers = 2, .tied = true, .micro_batches = 4}));
  const auto between = [&](std::size_t size, std::size_t local) {
    std::atomic<std::uint64_t> sent = 0, inside = 0;
    test::World world{.size = size, .own_weights = true, .local = local};
    world.tell = [&](const Engine& engine, bool after) {
      const auto found = engine.counters().network.value();
      const auto crossed = found.between_machines.sent;
      const auto stayed = found.sent - crossed;
      after ? sent += crossed : sent -= crossed;
      after ? inside += stayed : inside -= stayed;
    };
    test::train(description, world, 5);
    EXPECT_EQ(inside > 0, local > 1);
    return sent.load();
  };
  const auto two = between(2, 1);
  EXPECT_GT(two, 0U);
  EXPECT_EQ(between(4, 2), two);
  EXPECT_GT(between(4, 1), 2 * two);
}

/// And the numbers of the norm. Every step refits all matrices; of an embedding's rows the plan says only the most.
TEST(Ranks, SendAndReceiveWhatThePlanSays) {
  auto shape =
      test::shape_of({.layers = 2, .embedding = false, .head = false, .micro_batches = 4, .subspace = "up|down"});
  shape.checks = {.check_every = 100, .rotate_every = 1};
  for (const auto& [size, local] : {std::pair<std::size_t, std::size_t>{2, 2}, {3, 1}, {4, 1}, {4, 2}}) {
    for (const bool own_weights : {false, true}) {
      network::FakeNetwork network(size, static_cast<std::uint32_t>(size * 2 + local));
      std::vector<std::array<Bytes, 2>> beyond(size);
      const auto whole = describe(shape);
      test::each_rank(network, size, [&, size = size, local = local](std::size_t rank) {
        auto settings = everything_in_dram();
        settings.budget.own_weights = own_weights;
        settings.network = test::port_of(network, rank);
        const auto own = test::for_rank(whole, rank, size, local);
        Engine engine(own, std::move(settings));
        engine.start();
        test::Rank(engine, own).fill();
        const auto moved = [&](std::uint64_t step) {
          test::Rank(engine, own).step(step, 4);
          engine.flush();
          const auto found = engine.counters().network.value();
          return std::array{found.sent, found.received};
        };
        const auto before = moved(0), after = moved(1);
        const auto& plan = engine.plan().schedule;
        beyond[rank] = {after[0] - before[0] - plan.network_sent, after[1] - before[1] - plan.network_received};
      });
      const auto peers = [n = size, m = local](std::size_t rank) { return rank % m != 0 ? 1 : m - 1 + n / m - 1; };
      const Bytes numbers = beyond.back()[0] / peers(size - 1);
      EXPECT_LT(numbers, 4096U);
      for (std::size_t rank = 0; rank < size; ++rank) {
        const auto norm = numbers * peers(rank);
        EXPECT_EQ(beyond[rank], (std::array{norm, norm})) << "rank " << rank << " of " << size << ", " << local;
      }
    }
  }
}

TEST(Ranks, SaveWhatOneDoes) {
  const auto description = describe(test::shape_of({.layers = 1, .micro_batches = 4, .subspace = "up"}));
  const test::Directory one, two;
  const auto save = [&](std::size_t size, const test::Directory& to) {
    network::FakeNetwork network(size, 3);
    test::each_rank(network, size, [&](std::size_t rank) {
      auto settings = everything_in_dram();
      if (size > 1) settings.network = test::port_of(network, rank);
      const auto own = test::for_rank(description, rank, size);
      Engine engine(own, std::move(settings));
      engine.start();
      test::Rank(engine, own).fill();
      test::Rank(engine, own).step(1, 4);
      engine.save_weights(to.path(), 50'000'000'000);
      engine.save_state(to.path() / "state");
    });
  };
  save(1, one);
  save(2, two);
  const auto read = [](const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(one.path())) {
    if (!entry.is_regular_file()) continue;
    const auto other = two.path() / std::filesystem::relative(entry.path(), one.path());
    EXPECT_EQ(read(entry.path()), read(other)) << other;
    ++files;
  }
  EXPECT_GE(files, 3U);
}

TEST(Ranks, AreToldWhatTheyCannotDo) {
  auto description = test::for_rank(describe(test::shape_of({.layers = 1, .micro_batches = 4})), 0, 2);
  EXPECT_ERROR(Engine(description, everything_in_dram()), ErrorCode::bad_input, "its network is missing");
  network::FakeNetwork network(2);
  auto settings = everything_in_dram();
  settings.network = test::port_of(network, 1);
  EXPECT_ERROR(Engine(description, settings), ErrorCode::bad_input, "rank 1 of 2");
  settings.network = test::port_of(network, 0);
  description.virtual_ranks = 1;
  EXPECT_ERROR(Engine(description, settings), ErrorCode::bad_input, "at most as many as virtual_ranks");
}

TEST(Ranks, ThatPlanOtherwiseAreRefusedByAll) {
  network::FakeNetwork network(2);
  std::array<std::string, 2> words;
  test::each_rank(network, 2, [&](std::size_t rank) {
    auto description = test::for_rank(describe(test::shape_of({.layers = 1, .micro_batches = 4})), rank, 2);
    description.seed += rank;
    auto settings = everything_in_dram();
    settings.network = test::port_of(network, rank);
    Engine engine(description, settings);
    try {
      engine.start();
    } catch (const Error& error) {
      words[rank] = error.what();
    }
  });
  for (const auto& word : words) EXPECT_NE(word.find("rank 1 has another plan than rank 0"), std::string::npos) << word;
}

}  // namespace
}  // namespace spillway
