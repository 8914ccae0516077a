// One run between its start and its end: memory, paths, journal, lanes, made in the order in which they need each
// other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "spillway/device/device.h"
#include "spillway/execute/arenas.h"
#include "spillway/execute/compress.h"
#include "spillway/execute/device_options.h"
#include "spillway/execute/device_updates.h"
#include "spillway/execute/executor.h"
#include "spillway/execute/gradients.h"
#include "spillway/execute/nodes.h"
#include "spillway/execute/replay.h"
#include "spillway/execute/rows.h"
#include "spillway/execute/store.h"
#include "spillway/execute/subspaces.h"
#include "spillway/execute/team.h"
#include "spillway/execute/tensors.h"
#include "spillway/execute/tiers.h"
#include "spillway/execute/updater.h"
#include "spillway/execute/volumes.h"
#include "spillway/execute/widening.h"
#include "spillway/memory/arena.h"
#include "spillway/plan/planner.h"

namespace spillway::execute {

/// What a run is started from.
struct Opening {
  bool reopen = false;         ///< keep what the volumes hold, and go on from the newest durable step
  bool if_found = false;       ///< when nothing is found, change nothing and do not start
  std::uint64_t at_least = 0;  ///< a durable step before this one does not count
  std::optional<std::filesystem::path> checkpoint;  ///< directory with a manifest: go back to it
  /// The directories of every manifest that exists; asked for when the volumes are open.
  std::function<std::vector<std::filesystem::path>()> pinned;
};

/// What was found there.
struct Found {
  bool found = false;  ///< a durable step; weights and states are those of it
  std::uint64_t step = 0;
  std::uint64_t applied = 0;  ///< the last step up to it that was not skipped
  std::int64_t updates = 0;
  std::string payload;              ///< of its commit
  std::size_t chunks = 0;           ///< of the model
  std::size_t replayed = 0;         ///< of them, updated again from their gradients
  std::size_t steps = 0;            ///< updates replayed for one chunk, at most
  double seconds = 0;               ///< all of it
  std::vector<std::string> damage;  ///< records that were not whole

  struct Phases {
    double memory = 0;   ///< mapped, filled and registered: as long without anything durable
    double opening = 0;  ///< volumes opened, the new generation durable
    double records = 0;  ///< commits and records read
    double reading = 0;  ///< snapshots of chunks that are up to date, where they stay in memory
    double replay = 0;   ///< the others: snapshots and gradients read, updated, written
  } phases;              ///< parts of `seconds`

  /// It is the step of this commit.
  void take(const journal::Commit& commit, const optim::Descriptor& optimizer);
};

/// What follows from a planned run alone. Outlives everything made of it.
struct RunPlan {
  const plan::Description& description;
  const state::Layout& layout;
  const plan::Budget& budget;
  const plan::Rates& rates;
  const plan::Plan& plan;
  const std::vector<NodeOptions>& nodes;
  const DeviceOptions& device;

  [[nodiscard]] bool durable() const noexcept { return plan.durability != plan::Durability::none; }
};

class Run {
 public:
  /// Maps the arena, opens or makes the volumes, recovers. On failure nothing is left behind that was not there.
  Run(const RunPlan& plan, const VolumeSettings& volumes, unsigned threads, const Opening& opening);
  ~Run() = default;
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  [[nodiscard]] const Found& found() const noexcept { return found_; }
  /// False: nothing was found, and only what is found was to be gone on with. Then it is of no further use.
  [[nodiscard]] bool started() const noexcept { return executor != nullptr; }
  /// What the volumes hold is needed no longer: they go with the run, whatever the settings said.
  void give_up_volumes() noexcept;
  [[nodiscard]] Arenas arenas() const {
    return {arena.data(), device.device ? device.device->memory().data() : nullptr};
  }
  /// Above what is resident, between steps: for a chunk and what updating it again takes.
  [[nodiscard]] std::span<std::byte> scratch() const { return arena.span().subspan(plan_.plan.resident); }

  // Durable runs, between steps, everything on its tier:

  /// The projectors of all subspaces from the states of their chunks, whatever these were loaded from; between steps.
  void restore_subspaces();
  /// What is on the tiers is the snapshot of step `version` of every chunk.
  void publish(std::uint64_t version);
  void commit(std::uint64_t step, bool skipped, const optim::Step& update, std::string_view payload);
  /// Of the last step that was committed, which changed nothing since `version`.
  [[nodiscard]] std::vector<std::byte> checkpoint(std::uint64_t version);
  void release(std::span<const std::byte> manifest);

  // Runs that are not durable, after their last step:

  /// Everything that snapshots of `commit`'s step need is on the paths and flushed, and the volumes stay when they are
  /// closed: the bytes of a manifest that ReadBack takes. `spec`: as a durable run's. Throws Error(does_not_fit), and
  /// all is as it was, where what stays in memory has no room on the paths, Error(bad_input) where nothing is there.
  [[nodiscard]] std::vector<std::byte> leave(const journal::JournalSpec& spec, const journal::Commit& commit);
  /// The volumes go after all when they are closed.
  void take_back() noexcept;
  void wait_durable();                                              ///< of everything committed
  [[nodiscard]] double waited() const noexcept { return waited_; }  ///< seconds that commits waited for the one before

  /// What the pending updates apply; set while no update runs.
  void set_update(const optim::Step& step);

  /// On the device that visits compute on, in the order of their stream.
  void compute(const device::Work& work);
  /// The threads of the host's own arithmetic.
  [[nodiscard]] device::Crew crew() const;

  memory::Arena arena;
  std::unique_ptr<Subspaces> subspaces;  ///< with memory that the device knows
  OpenDevice device;                     ///< with memory of its own; none: visits compute in the arena
  std::vector<std::unique_ptr<storage::Path>> paths;
  std::unique_ptr<journal::RunJournal> journal;  ///< null: nothing is durable
  std::unique_ptr<storage::Pool> pool;           ///< null: nothing is on a path
  std::unique_ptr<Store> store;                  ///< as `pool`
  std::unique_ptr<Team> team;
  std::unique_ptr<EmbeddingRows> rows;  ///< null: no embedding
  std::unique_ptr<Compress> compress;
  std::unique_ptr<Widening> widening;
  std::unique_ptr<Updater> updater;
  std::unique_ptr<DeviceUpdates> device_updates;
  std::unique_ptr<Gradients> gradients;
  std::unique_ptr<Tiers> tiers;
  std::unique_ptr<Tensors> tensors;
  std::unique_ptr<Executor> executor;

 private:
  void write_resident(std::size_t chunk, std::uint64_t version);
  void check_room() const;
  void flush_paths();

  /// Whatever ends the run: the journal is closed while the pool is there, and no write waits for what they would
  /// release.
  struct Closing {
    const std::unique_ptr<journal::RunJournal>& journal;
    const std::unique_ptr<storage::Pool>& pool;
    ~Closing() {
      if (journal) journal->stop();
      if (pool) pool->close();
    }
  };
  bool open_storage(const VolumeSettings& volumes, const Opening& opening, int looks);
  void open_paths(const VolumeSettings& volumes, std::span<const Bytes> capacities,
                  const std::optional<journal::JournalSpec>& spec, VolumeMode mode);
  void map_memory();
  void recover(const Opening& opening);
  void open_journal();
  void open_device();
  [[nodiscard]] Arithmetic arithmetic();
  device::Device& calculator() { return device.device ? *device.device : *host_; }
  void make_lanes(unsigned threads);
  [[nodiscard]] Replay::Parts replay_parts();
  void restore(Replay& replay);
  void restore_chunk(Replay& replay, std::size_t chunk, std::span<std::byte> scratch);
  void commit_held();
  void publish_from_device(std::size_t chunk, std::uint64_t version);
  void write(Field field, std::size_t chunk, const std::byte* memory, std::uint64_t version);

  std::unique_ptr<device::Device> host_;  ///< where arithmetic is done when there is no other device
  Closing closing_{journal, pool};
  const RunPlan plan_;
  Found found_;
  journal::Recovered recovered_;  ///< until the run is open
  std::vector<storage::Path*> path_pointers_;
  std::vector<journal::Manifest> pinned_;    ///< the same
  std::optional<journal::Manifest> back_;    ///< the same
  std::vector<std::uint32_t> gradient_ids_;  ///< that every update uses
  /// A commit that waits for a checkpoint.
  struct Held {
    std::uint64_t step = 0;
    std::uint64_t previous = 0;  ///< the last before it that changed something, of those that were held
    bool skipped = false;
    std::vector<std::byte> update;
    std::string payload;
  };
  std::optional<Held> held_;
  std::optional<std::uint64_t> committed_;
  double waited_ = 0;
};

/// The manifest in a checkpoint's directory.
inline constexpr const char* kManifestName = "manifest.bin";
/// Throws Error(bad_input) when there is none, or one of another run, Error(corrupt) when it is damaged, or says what
/// `check` finds that it cannot.
[[nodiscard]] journal::Manifest read_manifest(const std::filesystem::path& directory, std::uint64_t identity,
                                              const journal::RecordCheck& check);

}  // namespace spillway::execute
