// A run is started with these options, and answers with what it found.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "spillway/journal/commit.h"
#include "spillway/optim/descriptor.h"

namespace spillway::execute {

/// Starting point of a run. By default anew.
struct OpenOptions {
  bool reopen = false;         ///< keep what the volumes hold, and go on from the newest durable step if there is one
  bool if_found = false;       ///< when nothing is found, change nothing and do not start
  std::uint64_t at_least = 0;  ///< a durable step before this one does not count
  /// A step of this run that the caller knows to have been durable once; 0: none. Where the paths know of no such step,
  /// Recovery::lost_until tells so.
  std::uint64_t known_step = 0;
  /// The last step that every shard of the run has, by EngineStore::durable_step(); journal::kNoStep: none has any.
  /// What this one has beyond it is cut off. Not with `checkpoint`.
  std::int64_t at_most = std::numeric_limits<std::int64_t>::max();
  std::uint64_t line = 0;  ///< number of the run's line, the same on all its shards; 0 in a world of one
  std::optional<std::filesystem::path> checkpoint = {};  ///< directory that save_manifest() filled: go back to it
  /// Lists every such directory that exists: what their manifests name is kept. It is asked on the caller's thread once
  /// the volumes are this process's, since another process of the run may have made and removed some until then.
  std::function<std::vector<std::filesystem::path>()> pinned = {};
};

/// State that the paths held.
struct Recovery {
  bool has_step = false;   ///< weights and states are those of `step`; else, once started, to be loaded
  std::uint64_t step = 0;  ///< training steps done, skipped ones included
  std::optional<std::uint64_t> cut_off = {};  ///< the step that this process had beyond it, and others had not
  /// Steps after `step` and up to this one had been durable, and the paths have lost them.
  std::optional<std::uint64_t> lost_until = {};
  std::uint64_t applied = 0;        ///< the last of them that was not skipped
  std::int64_t updates = 0;         ///< of them, those that were not skipped
  std::string payload;              ///< what commit() was given for it
  std::size_t chunks = 0;           ///< of the model
  std::size_t replayed = 0;         ///< of them, updated again from their gradients
  std::size_t replayed_steps = 0;   ///< updates of one chunk done again, at most
  double seconds = 0;               ///< that start() took
  std::vector<std::string> damage;  ///< records that were not whole, where others were

  struct Phases {
    double memory = 0;   ///< mapped, filled and registered: as long without anything durable
    double opening = 0;  ///< volumes opened, the new generation durable
    double records = 0;  ///< commits and records read
    double reading = 0;  ///< snapshots of chunks that are up to date, where they stay in memory
    double replay = 0;   ///< the others: snapshots and gradients read, updated, written
  } phases;              ///< parts of `seconds`

  /// It is the step of this commit.
  void take(const journal::Commit& commit, const optim::Descriptor& optimizer);
  /// One sentence for a person; empty when nothing was found.
  [[nodiscard]] std::string words() const;
};

/// Adds the seconds of a scope.
class Clocked {
 public:
  explicit Clocked(double& sum) : sum_(sum) {}
  ~Clocked() { sum_ += std::chrono::duration<double>(Clock::now() - began_).count(); }
  Clocked(const Clocked&) = delete;
  Clocked& operator=(const Clocked&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& sum_;
  const Clock::time_point began_ = Clock::now();
};

}  // namespace spillway::execute
