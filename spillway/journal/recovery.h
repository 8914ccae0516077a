// What a run left on its paths: the durable step, and where everything it needs lies.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "spillway/journal/commit.h"
#include "spillway/journal/journal_spec.h"
#include "spillway/journal/manifest.h"
#include "spillway/journal/media.h"
#include "spillway/journal/vote.h"

namespace spillway::journal {

/// A slot that holds neither a whole record nor nothing, or that the drive cannot give; or all slots of a path, of
/// which none holds anything although a step is durable. After a cut a torn record is no cause for alarm.
struct Damage {
  std::uint32_t path = 0;
  Bytes offset = 0;  ///< in the metadata area
  Bytes bytes = 0;
  std::string what;  ///< "the record of the snapshot of layers.3 chunk 1, copy 0, slot 1"
};

/// Generation, whether a step is durable, step: commits are written in this order.
using CommitOrder = std::tuple<std::uint32_t, bool, std::uint64_t>;

/// A path that lacks a commit which had been durable on it: an earlier state was put back, or the drive lost what it
/// had said was flushed.
struct StalePath {
  std::uint32_t path = 0;
  std::optional<std::uint64_t> step;  ///< of its newest commit; none: it holds no commit of a step
  std::uint64_t durable = 0;          ///< the step whose commit it lacks
};

struct RecoveredCommit {
  Commit commit;
  std::uint32_t slot = 0;
};

struct RecoveredObject {
  StoredObject stored;
  std::uint32_t generation = 0;
  std::uint32_t slot = 0;
};

struct Recovered {
  static constexpr std::uint32_t kNoCommit = ~std::uint32_t{0};

  /// Whether a step is durable. When none is, there are no snapshots, gradients and commits to replay; with `damage`
  /// that may be because of it, and nobody should begin anew without being asked.
  bool found = false;
  std::uint32_t newest_generation = 0;     ///< the highest that any record names; 0: none
  Commit newest;                           ///< of the durable step
  std::uint32_t newest_slot = kNoCommit;   ///< of that, or where no step is durable of the newest commit
  std::optional<std::uint64_t> cut_off;    ///< the step that this shard had, which is newer than what may count
  std::vector<RecoveredCommit> commits;    ///< of the steps to replay, oldest first; skipped steps are left out
  std::vector<RecoveredObject> snapshots;  ///< one per chunk
  std::vector<RecoveredObject> gradients;  ///< needed, by gradient, oldest version first
  std::vector<storage::Place> places;      ///< in use by all of these and by the manifests, sorted, each once
  std::vector<Damage> damage;
  std::vector<StalePath> stale_paths;  ///< paths whose records may be older than those of the others
  CommitOrder last_commit;             ///< of the newest of all commits, which may have been cut off
  std::uint64_t highest_step = 0;      ///< of all whole commits, in whatever line
  std::uint64_t foreign = 0;           ///< whole records of another run or layout
  /// Why the drive of a path gives neither copy of a slot for commits, which may hold one that is newer than `newest`:
  /// nothing may be written then, for it could take a slot or a generation that the run needs. Empty: all were read.
  std::string unread;
};

struct RecoveryOptions {
  /// Names a chunk or gradient in messages ("model.layers.3 chunk 1"); null: "chunk 7".
  std::function<std::string(ObjectKind, std::uint32_t)> name;
  /// What is wrong with the pieces of a whole record ("piece 3 has 8192 bytes instead of 4096"): it counts as damaged.
  /// Empty: nothing is. Null: nothing is asked.
  std::function<std::string(ObjectKind, std::uint32_t, std::span<const Piece>)> objection = {};
  /// The checkpoints that exist; their places count as used.
  std::span<const Manifest> pinned;
  /// The last step that every shard of the run has; kNoStep: none has any. What this shard has beyond it, one step at
  /// most, does not count.
  std::int64_t at_most = std::numeric_limits<std::int64_t>::max();
};

/// What a shard would go on from by itself, for the others to be told.
struct NewestStep {
  std::int64_t step = kNoStep;  ///< durable on this shard; kNoStep: none is
  std::uint64_t line = 0;       ///< of its newest commit, which may be of no step
};
/// Reads the commits of all paths; writes nothing. The paths are to be flushed before: what a process that was killed
/// had written can be read without being durable, and the others rely on what they are told.
[[nodiscard]] NewestStep newest_step(const JournalSpec& spec, Media& media);

/// Reads the metadata of all paths and waits for it; writes nothing. Throws Error(corrupt) that says what is missing,
/// and where it should be, when a step was durable and cannot be had.
[[nodiscard]] Recovered recover(const JournalSpec& spec, Media& media, const RecoveryOptions& options = {});

}  // namespace spillway::journal
