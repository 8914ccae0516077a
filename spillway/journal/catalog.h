// The versions of every object that a journal knows, and who still needs them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "spillway/journal/commit.h"
#include "spillway/journal/flushes.h"
#include "spillway/journal/journal_spec.h"
#include "spillway/journal/piece.h"
#include "spillway/journal/recovery.h"

namespace spillway::journal {

/// One version of a snapshot or a gradient.
struct Version {
  static constexpr std::uint32_t kNoSlot = ~std::uint32_t{0};

  std::uint64_t version = 0;
  std::uint32_t generation = 0;
  std::vector<Piece> pieces;
  PathSet paths = 0;             ///< that hold pieces
  Tick tick = 0;                 ///< when the pieces were written
  std::uint32_t slot = kNoSlot;  ///< of its record
  std::uint32_t writing = 0;     ///< records queued or in flight
  bool recorded = false;         ///< every copy of the record was written
  PathSet record_paths = 0;
  Tick record_tick = 0;
  std::uint32_t pins = 0;  ///< checkpoints that hold it
  bool live = true;        ///< the run needs it
};

/// Decides when places are free: when neither the run nor a checkpoint nor a record under way holds the version that
/// has them. Versions are reused, so that a steady state allocates nothing. Not thread safe.
class Catalog {
 public:
  struct Chunk {
    Version* trusted = nullptr;     ///< its record is durable, and the step of its version
    Version* recording = nullptr;   ///< its record is on its way
    std::vector<Version*> written;  ///< complete, without record, oldest first
    std::vector<Version*> pinned;
  };
  struct Gradient {
    std::vector<Version*> held;    ///< needed for replay or not committed yet, oldest first
    std::vector<Version*> ending;  ///< not needed, but their records are being written
  };

  explicit Catalog(const JournalSpec& spec);

  std::vector<Chunk> chunks;
  std::vector<Gradient> gradients;

  /// Versions that a run left and that it goes on from.
  void adopt(const Recovered& recovered);
  /// The snapshot of a checkpoint becomes the one that is to count, with a record of `generation` that is to come.
  void take_back(std::uint32_t chunk, const StoredObject& snapshot, std::uint32_t generation);

  [[nodiscard]] Version* make(std::uint64_t version, std::uint32_t generation, std::span<const Piece> pieces);
  /// The run does not need the version any more.
  void retire(Version* version);
  /// The write of a record of an object's version has ended.
  void record_ended(ObjectKind kind, std::uint32_t object, Version* version);

  /// The snapshot that has been recorded counts from now on; what it replaces is retired.
  void trust(std::uint32_t chunk);
  /// Retires every version before the one that is recorded now.
  void drop_written_before(std::uint32_t chunk, std::uint64_t version);
  /// Retires one version of a gradient, if it is held.
  void drop_gradient(std::uint32_t gradient, std::uint64_t version);
  /// Retires gradients of the step that its update did not use: replay does without them.
  void drop_unused_gradients(const Commit& commit);
  /// Retires the gradients that other generations wrote.
  void drop_gradients_but_of(std::uint32_t generation);

  /// The slot for a new record of a gradient; kNoSlot when versions that are needed hold all of them.
  [[nodiscard]] std::uint32_t free_slot(std::uint32_t gradient, std::uint32_t slots) const;
  /// The step of the oldest snapshot that recovery would start from; constant ones are of every step.
  [[nodiscard]] std::uint64_t oldest_trusted() const;
  /// The step of the oldest snapshot that recovery would start from, and the generations of constant snapshots.
  [[nodiscard]] NeededLine needed_line() const;
  /// Whether `version` (may be null) is the snapshot of steps `first` to `last`; of a chunk that another shard has
  /// nothing is needed, and it is.
  [[nodiscard]] bool is_of(std::uint32_t chunk, const Version* version, std::uint64_t first,
                           std::uint64_t last = ~std::uint64_t{0}) const;
  /// The gradients of this step and earlier ones are not needed.
  [[nodiscard]] std::uint64_t floor(std::uint32_t gradient) const;

  /// A checkpoint holds its snapshots, whether the run knows them or not.
  void pin(const Manifest& manifest);
  void pin(std::uint32_t chunk, std::uint64_t version, std::span<const Piece> pieces);
  /// A checkpoint gives up its snapshots, which are pinned.
  void unpin(const Manifest& manifest);
  void unpin(std::uint32_t chunk, std::span<const Piece> pieces);
  /// The version with these pieces; null when there is none.
  [[nodiscard]] Version* find(std::uint32_t chunk, std::span<const Piece> pieces) const;

  /// Versions whose places became free; give each back with recycle(), which allocates nothing.
  [[nodiscard]] std::vector<Version*> take_released();
  void recycle(Version* version) noexcept { spare_.push_back(version); }

 private:
  void adopt_snapshot(const RecoveredObject& snapshot);
  void settle(Version* version);
  template <class Which>
  void drop(std::uint32_t gradient, const Which& which);

  const JournalSpec& spec_;
  std::vector<std::vector<std::uint32_t>> feeding_;  ///< per chunk: its gradients
  std::vector<std::unique_ptr<Version>> all_;
  std::vector<Version*> spare_;
  std::vector<Version*> released_;
};

}  // namespace spillway::journal
