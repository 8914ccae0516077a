// Saving of a run to its storage paths: commits, snapshots of chunks, checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/execute/protocol.h"
#include "spillway/execute/run_plan.h"
#include "spillway/execute/run_storage.h"
#include "spillway/execute/tiers.h"

namespace spillway::execute {

/// Between steps, with everything on its tier, but for commit().
class Saving {
 public:
  /// `scratch`: free between steps, for the largest chunk. `committed`: the step that the run goes on from. All
  /// references must outlive it.
  Saving(const RunPlan& plan, RunStorage& storage, Tiers& tiers, std::span<std::byte> scratch,
         std::optional<std::uint64_t> committed);

  // Durable runs:

  [[nodiscard]] bool durable() const noexcept { return storage_.run_journal() != nullptr; }
  /// Makes the content of the tiers the snapshot of step `version` of every chunk.
  void publish_snapshots(std::uint64_t version);
  /// Waits for the commit before to be durable, where gradients are kept for replay; else the commit is held until a
  /// checkpoint needs it.
  void commit(const Commitment& of, std::string_view payload);
  /// The manifest of the last step that was committed, which changed nothing since `version`.
  [[nodiscard]] std::vector<std::byte> checkpoint(std::uint64_t version);
  void release(std::span<const std::byte> manifest);
  /// Waits until everything that was committed is durable. Returns at once where nothing is.
  void wait_durable();
  /// Adds the seconds that commits waited for the one before, as "commit".
  void add_stalls(std::map<std::string, double>& seconds) const {
    if (durable()) seconds["commit"] = waited_;
  }

  // Runs that are not durable, after their last step:

  /// Everything that snapshots of the step need is on the paths and flushed, and the volumes stay when they are closed:
  /// the bytes of a manifest that ReadBack takes. Throws Error(does_not_fit), and all is as it was, where what stays in
  /// memory has no room on the paths, Error(bad_input) where nothing is there.
  [[nodiscard]] std::vector<std::byte> leave(const Commitment& of, std::string_view payload);
  /// The volumes go after all when they are closed.
  void take_back() noexcept;

 private:
  void write(std::size_t chunk, std::uint64_t version);
  void write_from_device(std::size_t chunk, std::uint64_t version);
  [[nodiscard]] journal::Commit commit_of(const Commitment& of, std::uint64_t previous, std::string_view payload) const;
  void commit_held();
  void check_room() const;

  const RunPlan& plan_;
  const state::UpdateRule rule_;
  RunStorage& storage_;
  Tiers& tiers_;
  const std::span<std::byte> scratch_;
  std::vector<std::uint32_t> gradients_;  ///< the journal's numbers of those that every update uses
  std::optional<journal::Commit> held_;   ///< that waits for a checkpoint
  std::optional<std::uint64_t> committed_;
  double waited_ = 0;
};

}  // namespace spillway::execute
