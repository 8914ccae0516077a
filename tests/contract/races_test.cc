// Every edge of order that the engine makes on a GPU is needed, or another one holds what it holds: steps over the fake
// driver, which leaves out one edge of one kind, and whose account (race_watch.h) has to see it.
#include <gtest/gtest.h>

#include <cstring>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/contract/on_gpu.h"
#include "tests/nightly.h"
#include "tests/plan/models.h"

namespace spillway {
namespace {

using device::Setting;
using test::Caller;
using test::on_gpu;
using test::train_on_gpu;

constexpr int kRacedSteps = 3;

struct GpuPlacement {
  std::string name;
  plan::DeviceTier tier;
  bool registers = true;  ///< host memory is registered with the GPU
};

/// Where the blocks' bytes are while a step runs.
std::vector<GpuPlacement> gpu_placements() {
  const auto tier = [](double weight, double activation, double state, double updated, double grad) {
    return plan::DeviceTier{.capacity = 48 * MiB,
                            .weight = weight,
                            .activation = activation,
                            .state = state,
                            .device_updated = updated,
                            .grad = grad,
                            .coalesce_to = 8 * KiB};
  };
  return {{"offloaded", tier(0, 0, 0, 0, 0)},
          {"device-updated", tier(0, 0.5, 0, 1, 0)},
          {"partly device-resident", tier(0.3, 0, 0.5, 0.6, 0.5)},
          {"offloaded, staged", tier(0, 0, 0, 0, 0), false}};
}

struct LeftOut {
  int dropped = 0, raced = 0, redundant = 0;
  int refused = 0;   ///< by another call of the driver, as times of events that are not done
  int for_host = 0;  ///< no race, and of a copy whose buffer the host uses after it: the thread sanitizer's
};

class LeftOutEdges {
 public:
  explicit LeftOutEdges(const GpuPlacement& placement)
      : placement_(placement), expected_(train_on_gpu(description_, everything_in_dram(), kRacedSteps, nullptr)) {}

  /// Leaves out `edges` calls of a kind, one in each of so many runs.
  LeftOut drop(const std::string& kind, int edges, std::mt19937& random) {
    auto whole = train_without("none", 0);
    EXPECT_EQ(whole.race, "") << placement_.name;
    EXPECT_TRUE(whole.same) << placement_.name;
    const int calls = whole.calls[kind];
    EXPECT_GT(calls, 0) << placement_.name << ": no " << kind;
    LeftOut out;
    for (int i = 0; i < edges && calls > 0; ++i) {
      const int edge = 1 + static_cast<int>(random() % static_cast<unsigned>(calls));
      const auto run = train_without(kind, edge);
      ++out.dropped;
      if (!run.race.empty()) {
        ++out.raced;
      } else if (run.refused) {
        ++out.refused;
      } else if (run.for_host) {
        ++out.for_host;
      } else {
        ++out.redundant;
        if (!run.same)
          ADD_FAILURE() << placement_.name << ": wrong bits and no race without " << kind << " " << edge << " of "
                        << calls;
      }
    }
    return out;
  }

 private:
  struct Run {
    std::string race;
    bool same = false, refused = false, for_host = false;
    std::map<std::string, int> calls;
  };

  Run train_without(const std::string& kind, int edge) {
    static int number = 0;
    const Setting drop("FAKE_CUDA_DROP", text(kind, ":", edge, ":", ++number).c_str());
    const Setting registers("FAKE_CUDA_REGISTERS", placement_.registers ? "1" : "0");
    Caller caller(number % 2 == 0);
    auto settings = on_gpu(caller);
    settings.budget.device = placement_.tier;
    settings.budget.window = 1;
    Run out;
    try {
      const auto outcome = train_on_gpu(description_, settings, kRacedSteps, &caller);
      const auto bytes = expected_.masters.size() * sizeof(float);
      out.same = outcome.norms == expected_.norms && outcome.masters.size() == expected_.masters.size() &&
                 std::memcmp(outcome.masters.data(), expected_.masters.data(), bytes) == 0;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the GPU failed in "), std::string::npos) << error.what();
      out.refused = true;
    }
    out.race = device::fake_race();
    out.for_host = device::fake_drop_was_for_host();
    for (const char* each : {"wait", "record", "synchronise"}) out.calls[each] = device::fake_calls(each);
    return out;
  }

  const GpuPlacement placement_;
  const plan::Description description_ = plan::test::describe(
      {.layers = 3, .hidden = 32, .ffn = 48, .vocabulary = 120, .tokens = 32, .chunk_elements = 2048});
  const Outcome expected_;
};

TEST(Races, ALeftOutEdgeIsARaceOrRedundant) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "races on purpose: not under the thread sanitizer";
#endif
  const Setting fails("FAKE_CUDA_RACES", "fail");
  std::mt19937 random(53);
  int raced = 0;
  for (const auto& placement : gpu_placements()) {
    for (const char* kind : {"wait", "record", "synchronise"}) {
      const auto it = LeftOutEdges(placement).drop(kind, spillway::testing::few_or(12, 200), random);
      std::cout << placement.name << ", " << kind << ": " << it.dropped << " left out, " << it.raced << " races, "
                << it.refused << " refused, " << it.redundant << " redundant, " << it.for_host
                << " of copies, for the host alone\n";
      raced += it.raced;
    }
  }
  EXPECT_GE(raced, 20);
}

}  // namespace
}  // namespace spillway
