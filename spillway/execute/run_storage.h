// Storage of a run: the volumes, the journal, the pool and the objects stored there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "spillway/execute/journal_objects.h"
#include "spillway/execute/recovery.h"
#include "spillway/execute/replay.h"
#include "spillway/execute/run_plan.h"
#include "spillway/execute/store.h"
#include "spillway/execute/volumes.h"
#include "spillway/journal/manifest.h"
#include "spillway/journal/recovery.h"
#include "spillway/journal/run_journal.h"

namespace spillway::execute {

/// Opened in two parts: open() before memory is mapped, since it may find that the run cannot be gone on with, and
/// start() after it.
class RunStorage {
 public:
  RunStorage(const RunPlan& plan, VolumeSettings volumes) : plan_(plan), volumes_(std::move(volumes)) {}
  ~RunStorage() { stop(); }
  RunStorage(const RunStorage&) = delete;
  RunStorage& operator=(const RunStorage&) = delete;

  /// For a plan that keeps nothing on the paths. Throws Error(bad_input) when they hold steps of the run, which it
  /// would pass over.
  void require_nothing_there() const;
  /// Opens the volumes, or makes them, and reads what is to be gone on with. False: nothing was found, and only what is
  /// found was to be opened. Volumes that were made are removed again unless started() is reached.
  [[nodiscard]] bool open(const OpenOptions& open_options, Recovery& recovery);
  /// The paths know the run's memory. The journal's new generation is durable when it returns.
  void start(const Recovery& recovery);
  /// Recovered state is on its tiers: the volumes are kept or removed at the end as the settings say.
  void started();
  /// Whatever ends the run: the journal is closed while the pool is there, and no write waits for what it would
  /// release.
  void stop() noexcept;

  /// The replay of what open() has read; valid until started().
  [[nodiscard]] Replay replay(ThreadPool& thread_pool);

  [[nodiscard]] std::span<storage::Path* const> paths() const noexcept { return path_pointers_; }
  [[nodiscard]] journal::RunJournal* run_journal() const noexcept {
    return journal_.get();
  }                                                                           ///< null: nothing is durable
  [[nodiscard]] storage::Pool* pool() const noexcept { return pool_.get(); }  ///< null: nothing is on a path
  [[nodiscard]] Store* store() const noexcept { return store_.get(); }        ///< the same
  [[nodiscard]] const VolumeSettings& volumes() const noexcept { return volumes_; }
  /// Decides if the volumes are removed when they are closed, whatever the settings say.
  void remove_on_close(bool remove) noexcept;

 private:
  /// Content of the volumes.
  struct Found {
    journal::Recovered recovered;
    std::vector<journal::Manifest> pinned;
    std::vector<std::filesystem::path> pinned_directories;  ///< their directories
    std::optional<journal::Manifest> back;                  ///< to be gone back to
  };
  [[nodiscard]] bool open(const OpenOptions& open_options, Recovery& recovery, int looks);
  void open_paths(std::span<const Bytes> capacities, const std::optional<journal::JournalSpec>& spec, VolumeMode mode);
  void read(const OpenOptions& open_options, Recovery& recovery);
  /// Throws Error(corrupt) that names a checkpoint which cannot exist beside what the paths hold.
  void require_pinned_exist(const OpenOptions& open_options) const;
  /// Throws Error(corrupt) that names a path which went back to an earlier state, where bytes are missing there.
  void require_stale_paths_hold(const journal::Recovered& recovered) const;
  [[nodiscard]] bool large_enough() const;
  void open_journal(bool resume);

  const RunPlan plan_;
  const VolumeSettings volumes_;
  std::vector<std::unique_ptr<storage::Path>> paths_;
  std::vector<storage::Path*> path_pointers_;
  std::unique_ptr<journal::RunJournal> journal_;
  std::unique_ptr<storage::Pool> pool_;
  std::unique_ptr<Store> store_;
  Found found_;
};

}  // namespace spillway::execute
