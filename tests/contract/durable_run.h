// A toy's run on storage paths, and the same run kept wholly in memory to compare it with.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/contract/toy.h"
#include "tests/plan/models.h"

namespace spillway::test {

class DurableRun {
 public:
  /// Trains it in memory, `steps` steps that end with `update`; without one with the toy's own.
  DurableRun(const plan::test::Shape& shape, std::uint64_t steps, std::optional<StepUpdate> update = std::nullopt)
      : description_(plan::test::describe(shape)), update_(update) {
    Settings settings;
    settings.budget.dram = 4 * GiB;
    Engine engine(description_, settings);
    engine.start();
    Toy toy(engine, description_, description_.micro_batches);
    if (update_) toy.update = *update_;
    toy.fill();
    truth_ = {toy.masters()};
    for (std::uint64_t s = 1; s <= steps; ++s) {
      toy.step(s);
      truth_.push_back(toy.masters());
    }
  }

  [[nodiscard]] const plan::Description& description() const { return description_; }
  [[nodiscard]] std::uint64_t steps() const { return truth_.size() - 1; }

  /// On `paths` directories below `where`, which are made.
  [[nodiscard]] static Settings settings(const std::filesystem::path& where, std::size_t paths,
                                         const plan::PlacementShares& placement,
                                         plan::Durability durability = plan::Durability::step) {
    Settings out;
    out.budget.dram = 2 * GiB;
    out.budget.placement = placement;
    out.budget.durability = durability;
    out.storage.keep = true;
    out.run = "a run";
    for (std::size_t p = 0; p < paths; ++p) {
      const auto directory = where / std::to_string(p);
      std::filesystem::create_directory(directory);
      out.storage.places.push_back({directory});
      out.budget.paths.push_back({.name = text("path:", p), .capacity = 1 * GiB});
    }
    return out;
  }

  void fill(Engine& engine) const { Toy(engine, description_, description_.micro_batches).fill(); }

  /// Steps from `first` to `last`, each committed with its number; calls `ended(s)` after each.
  template <class Ended>
  void train(Engine& engine, std::uint64_t first, std::uint64_t last, const Ended& ended) const {
    Toy toy(engine, description_, description_.micro_batches);
    if (update_) toy.update = *update_;
    toy.expected = toy.update;
    for (std::uint64_t s = first; s <= last; ++s) {
      toy.step(s);
      engine.commit(text("step ", s));
      ended(s);
    }
  }
  void train(Engine& engine, std::uint64_t first, std::uint64_t last) const {
    train(engine, first, last, [](std::uint64_t) {});
  }

  /// Whether the engine holds the state after `step`, bit by bit.
  [[nodiscard]] ::testing::AssertionResult holds(Engine& engine, std::uint64_t step) const {
    const auto found = Toy(engine, description_, description_.micro_batches).masters();
    const auto& expected = truth_.at(step);
    if (found.size() != expected.size()) return ::testing::AssertionFailure() << found.size() << " elements";
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (std::memcmp(&found[i], &expected[i], sizeof(float)) != 0) {
        return ::testing::AssertionFailure()
               << "step " << step << ", element " << i << ": " << found[i] << " instead of " << expected[i];
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  const plan::Description description_;
  const std::optional<StepUpdate> update_;
  std::vector<std::vector<float>> truth_;  ///< by step
};

}  // namespace spillway::test
