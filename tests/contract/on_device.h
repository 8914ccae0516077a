// Runs whose passes compute on the simulated device, with random delays.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>

#include "tests/contract/lives.h"
#include "tests/contract/outcome.h"
#include "tests/contract/toy.h"

namespace spillway::test {

/// Of blocks such parts live there with their states, of the others such parts pass through it; of the gradients of
/// these such a part stays there.
inline plan::DeviceTier tier(double state, double updated = 0, double grad = 0) {
  return {.capacity = 1 * GiB, .weight = 0, .activation = 0, .state = state, .device_updated = updated, .grad = grad};
}

/// `seed` 0: without delays.
inline void delay_copies(Settings& settings, std::uint64_t seed) {
  settings.device.simulated = {.memory = 1 * GiB, .seed = seed, .longest_delay = 5e-5};
}

inline Settings with_device(const plan::DeviceTier& device, std::uint64_t seed) {
  auto out = everything_in_dram();
  out.budget.device = device;
  delay_copies(out, seed);
  return out;
}

/// A toy that is about to take its first step. `queued`: the caller's work runs behind it, in a stream of the device.
class Training {
 public:
  Training(const plan::Description& description, Settings settings, bool queued)
      : compute_(queued ? queue_compute(settings) : nullptr),
        engine(description, std::move(settings)),
        toy(engine, description, description.micro_batches) {
    engine.start();
    if (compute_) toy.compute = *compute_;
    toy.fill();
  }

 private:
  const std::shared_ptr<Compute> compute_;

 public:
  Engine engine;
  Toy toy;
};

/// Five steps, evaluations among them, and pauses in which all updates end.
inline Outcome train_with_pauses(Training& training) {
  Outcome out;
  for (std::uint64_t s = 0; s < 5; ++s) {
    out.norms.push_back(training.toy.step(s).grad_norm);
    if (s % 2 == 0) training.toy.step(1000 + s, false);
    if (s % 3 == 1) training.engine.flush();
  }
  out.masters = training.toy.masters();
  return out;
}

/// Steps of which some are updated on a device and some on the host go on from each other's, in lives of at most
/// `longest` steps: blocks live there, or pass, or there is none.
inline void expect_lives_with_a_device(const DurableRun& run, std::size_t paths, std::uint64_t longest,
                                       std::mt19937& random) {
  static constexpr std::array<plan::PlacementShares, 3> kPlacements = {
      {{1, 1, 1, 1}, {0.5, 0.7, 0.3, 0}, {0, 0, 0, 0}}};
  const Directory where;
  expect_each_life_goes_on(run, longest, random, [&](int life) {
    auto out = DurableRun::settings(where.path(), paths, kPlacements[random() % 3]);
    if (life % 3 == 0) out.budget.device = tier(random() % 2 == 0 ? 1 : 0.4);
    if (life % 3 == 1) out.budget.device = tier(random() % 2 == 0 ? 0 : 0.4, 0.7, random() % 2);
    delay_copies(out, random());
    out.threads = 1 + random() % 3;
    return out;
  });
}

}  // namespace spillway::test
