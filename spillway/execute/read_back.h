// Reads the state of a run on its paths without going on with it: nothing is written. Each of several processes reads
// its own, and hears from the others what they have.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "spillway/execute/recovery.h"
#include "spillway/execute/replay.h"
#include "spillway/execute/run_plan.h"
#include "spillway/execute/volumes.h"
#include "spillway/memory/arena.h"
#include "spillway/state/checkpoint.h"

namespace spillway::execute {

/// The chunks of the newest durable step, or of a checkpoint, for whoever saves them.
class ReadBack : public state::ChunkStore {
 public:
  /// `checkpoint`: directory of a manifest, of a checkpoint or of what Saving::leave() has left. Throws
  /// Error(bad_input) when there is neither. `at_most`: the last step that all shards of the run have, where it has
  /// several. `work`: memory to work in, aligned to 4096, instead of its own, where that is enough.
  ReadBack(const RunPlan& plan, VolumeSettings volumes, unsigned threads,
           const std::optional<std::filesystem::path>& checkpoint,
           std::int64_t at_most = std::numeric_limits<std::int64_t>::max(), std::span<std::byte> work = {});

  [[nodiscard]] const Recovery& recovery() const noexcept { return recovery_; }
  // These do what those of Tensors do:

  void save_weights(const std::filesystem::path& directory, const state::SaveOptions& options);
  void save_state(const std::filesystem::path& directory);
  void fetch(std::size_t tensor, std::uint64_t first, std::span<float> values);

  void load(std::size_t chunk, std::byte* weight, std::byte* state) override;
  void store(std::size_t chunk, const std::byte* weight, const std::byte* state) override;

 private:
  [[nodiscard]] state::ChunkStream stream();
  void load_own(std::size_t chunk, std::byte* weight, std::byte* state);
  void describe();

  const RunPlan plan_;
  Recovery recovery_;
  std::vector<std::unique_ptr<storage::Path>> paths_;
  std::vector<storage::Path*> path_pointers_;
  journal::Recovered recovered_;
  std::optional<journal::Manifest> manifest_;
  std::unique_ptr<storage::Pool> pool_;
  std::unique_ptr<ThreadPool> thread_pool_;
  std::optional<Replay> replay_;
  memory::Arena arena_;
  std::size_t fetched_ = ~std::size_t{0};                ///< the chunk in `stream_`, where fetch() has left one
  std::span<std::byte> stream_, chunk_, replay_memory_;  ///< in the arena, or in the caller's
};

}  // namespace spillway::execute
