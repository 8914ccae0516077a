// What a run does with its volumes, checkpoints and saves, in pieces that a test can disturb; and what must be true of
// what the disturbed one leaves.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/contract/durable_run.h"

namespace spillway::calls {

/// What a process that may die at any instant tells of itself: in memory that it shares with the test.
struct Told {
  std::atomic<std::uint64_t> durable{0};      ///< the newest step that it was told to be durable
  std::atomic<std::uint64_t> begun{0};        ///< the newest one that it gave to the engine
  std::atomic<bool> started{false};           ///< its volumes are there
  std::atomic<bool> kept{false};              ///< the manifest of step 2 is whole
  std::atomic<bool> saved{false};             ///< the save is whole
  std::atomic<bool> gone{false};              ///< it began to give up its volumes
  std::atomic<bool> clear{false};             ///< what failed, failed by spillway::Error
  std::atomic<std::uint64_t> allocations{0};  ///< that were counted
  std::array<char, 512> words{};              ///< of the error
};

/// Exit statuses of a scenario.
inline constexpr int kDone = 0, kFailed = 1, kUnclear = 2;

enum class Scenario : std::uint8_t { create, refuse, reopen, recover, grow, checkpoint, save, export_, verify, remove };
inline constexpr std::array kScenarios = {Scenario::create, Scenario::refuse, Scenario::reopen,     Scenario::recover,
                                          Scenario::grow,   Scenario::save,   Scenario::checkpoint, Scenario::export_,
                                          Scenario::verify, Scenario::remove};
[[nodiscard]] std::string name_of(Scenario scenario);

/// How it is disturbed is said from outside; this is where and how it runs.
struct Stage {
  std::filesystem::path where;  ///< an empty directory of its own
  std::size_t paths = 1;
  sys::RingFactory ring = {};  ///< empty: the machine's best
};

class Scenes {
 public:
  Scenes();

  /// Puts what the scenario begins with into the stage, which loses what it had. Undisturbed.
  void prepare(Scenario scenario, const Stage& stage) const;
  /// Of the scenario; makes the directories that it names.
  [[nodiscard]] Settings settings(Scenario scenario, const Stage& stage, bool before = false) const;
  /// The scenario itself: throws what the engine throws. Calls `planned` when there is a plan, and nothing has begun.
  void play(Scenario scenario, const Stage& stage, const Settings& settings, const std::function<void()>& planned,
            Told& told) const;
  /// Whether what it has left is the old state or the new one, whole, and goes on to the reference's last step.
  /// `done`: it said that all is well.
  [[nodiscard]] ::testing::AssertionResult whole(Scenario scenario, const Stage& stage, const Told& told,
                                                 bool done) const;

 private:
  void train(Engine& engine, std::uint64_t first, std::uint64_t last, Told& told) const;
  static void verify(const Engine& engine);
  [[nodiscard]] static bool in_the_way(const Stage& stage);
  [[nodiscard]] static bool partly_gone(const Stage& stage);
  void save(Engine& engine, const Stage& stage, Told& told) const;
  [[nodiscard]] ::testing::AssertionResult goes_on(Scenario scenario, const Stage& stage, const Told& told,
                                                   bool done) const;
  [[nodiscard]] ::testing::AssertionResult loads(const std::filesystem::path& directory) const;
  [[nodiscard]] ::testing::AssertionResult goes_back(const Stage& stage) const;

  const test::DurableRun run_;
};

}  // namespace spillway::calls
