// What a run has left on its paths, without going on with it: nothing is written.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "spillway/execute/replay.h"
#include "spillway/execute/run.h"
#include "spillway/memory/arena.h"
#include "spillway/state/checkpoint.h"

namespace spillway::execute {

/// The chunks of the newest durable step, or of a checkpoint, for whoever saves them.
class ReadBack : public state::ChunkStore {
 public:
  /// `checkpoint`: directory of a manifest, of a checkpoint or of what Run::leave() has left. Throws Error(bad_input)
  /// when there is neither.
  ReadBack(const RunPlan& plan, VolumeSettings volumes, unsigned threads,
           const std::optional<std::filesystem::path>& checkpoint);

  [[nodiscard]] const Found& found() const noexcept { return found_; }
  [[nodiscard]] state::ChunkStream stream();
  /// As Tensors::fetch().
  void fetch(std::size_t tensor, std::uint64_t first, std::span<float> values);

  void load(std::size_t chunk, std::byte* weight, std::byte* state) override;
  void store(std::size_t chunk, const std::byte* weight, const std::byte* state) override;

 private:
  void claim(const journal::Manifest& manifest);
  void describe();

  const RunPlan plan_;
  Found found_;
  std::vector<std::unique_ptr<storage::Path>> paths_;
  std::vector<storage::Path*> path_pointers_;
  journal::Recovered recovered_;
  std::optional<journal::Manifest> manifest_;
  std::unique_ptr<storage::Pool> pool_;
  std::unique_ptr<Team> team_;
  std::optional<Replay> replay_;
  memory::Arena arena_;
  std::size_t fetched_ = ~std::size_t{0};                ///< the chunk in `stream_`, where fetch() has left one
  std::span<std::byte> stream_, chunk_, replay_memory_;  ///< in the arena
};

/// What `verify` tells.
struct Verified {
  struct Damage {
    std::uint32_t path = 0;
    std::filesystem::path file;
    Bytes offset = 0;  ///< in the file
    Bytes bytes = 0;
    std::string what;
  };
  Bytes bytes = 0;                    ///< read
  std::optional<std::uint64_t> step;  ///< the newest durable one
  std::vector<Damage> damage;
};

/// Reads every byte that counts: superblocks, records, the newest durable step and what replays it, and the checkpoints
/// whose manifests are in `pinned`. Damage is told, not thrown. Throws Error(bad_input) when there is no volume of the
/// run.
[[nodiscard]] Verified verify(const RunPlan& plan, VolumeSettings volumes,
                              const std::vector<std::filesystem::path>& pinned);

}  // namespace spillway::execute
