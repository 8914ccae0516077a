// Chunks as they were at the last durable step: a snapshot, and the updates that came after it done again.
//
// An update is a function of the snapshot, the gradient and the commit (docs/decisions/0001-durable-storage.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "spillway/execute/chunk_update.h"
#include "spillway/execute/journal_objects.h"
#include "spillway/execute/sparse_embedding.h"
#include "spillway/execute/thread_pool.h"
#include "spillway/journal/manifest.h"
#include "spillway/journal/recovery.h"
#include "spillway/state/layout.h"
#include "spillway/storage/pool.h"

namespace spillway::execute {

class Replay {
 public:
  struct Parts {
    const plan::Description& description;
    const state::Layout& layout;
    std::span<storage::Path* const> paths;
    storage::Pool& pool;
    ThreadPool& thread_pool;
  };

  /// Replays what a run left, or a checkpoint; journal::RecordCheck has found either good. All references must
  /// outlive it.
  Replay(const Parts& parts, const journal::Recovered& recovered);
  Replay(const Parts& parts, const journal::Manifest& manifest);

  [[nodiscard]] const journal::Commit& commit() const noexcept { return *commit_; }
  [[nodiscard]] const journal::StoredObject& snapshot(std::size_t chunk) const { return *snapshots_[chunk]; }
  /// Updates that the snapshot of the chunk lacks; what is frozen lacks none.
  [[nodiscard]] std::size_t missing(std::size_t chunk) const;

  /// Bytes of memory that replaying takes beside weight and state: a gradient and the rows of an embedding.
  [[nodiscard]] Bytes scratch() const;
  /// Reads the snapshot, verified, and updates it `missing` times. Memory is aligned to 4096; a null pointer leaves
  /// that part alone, only where nothing is missing. Throws Error(corrupt) naming what was damaged.
  void load(std::size_t chunk, std::byte* weight, std::byte* state, std::span<std::byte> scratch);
  /// Tells the paths what reads of the snapshot will be verified against.
  void expect_snapshot(std::size_t chunk);

 private:
  Replay(const Parts& parts, const journal::Commit& commit);
  void expect(const journal::StoredObject& object);
  Bytes read(const journal::StoredObject& object, std::uint32_t part, std::span<std::byte> memory,
             const std::string& what);
  void update(std::size_t chunk, const journal::Commit& commit, std::byte* weight, std::byte* state,
              std::span<std::byte> scratch);
  [[nodiscard]] const journal::StoredObject& gradient(std::uint32_t number, std::uint64_t step) const;
  std::span<std::byte> read_sparse(const journal::Commit& commit, std::span<std::byte> memory);

  const Parts parts_;
  const GradientIds ids_;
  const state::Block* const table_;  ///< of an embedding; may be null
  ChunkUpdate update_;
  const journal::Commit* commit_ = nullptr;
  std::vector<const journal::StoredObject*> snapshots_;  ///< by chunk
  std::vector<const journal::Commit*> commits_;          ///< to replay, oldest first
  std::map<std::pair<std::uint32_t, std::uint64_t>, const journal::StoredObject*> gradients_;  ///< by number and step
};

}  // namespace spillway::execute
