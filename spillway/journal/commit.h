// The record that makes a step durable: everything its update used (docs/formats/journal.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/journal/journal_spec.h"
#include "spillway/journal/record.h"

namespace spillway::journal {

/// Bytes of a commit's update that every commit has; what an update has beside them lies behind the payload.
inline constexpr std::size_t kUpdateBytes = 52;

/// Records of generations `first` to `last` belong to the line, up to version `step`.
struct Ancestor {
  std::uint32_t first = 0, last = 0;
  std::uint64_t step = 0;
  friend bool operator==(const Ancestor&, const Ancestor&) = default;
};
/// Ancestors that a commit holds at most.
inline constexpr std::size_t kMostAncestors = 128;
/// A commit names the paths that it is written to where the run has no more than these.
inline constexpr std::uint32_t kMostNamedPaths = 16;

struct Commit {
  std::uint32_t generation = 0;
  std::uint64_t step = 0;
  std::uint64_t previous = 0;         ///< the last step before this one that was not skipped
  bool skipped = false;               ///< the step changed nothing: its gradients were not finite
  bool nothing = false;               ///< no step is durable: a run began anew and has not committed yet
  std::uint32_t rank = 0, world = 1;  ///< the shard that it is of, and how many the run has
  std::uint64_t line = 0;             ///< random number of the run's line, the same on all shards; 0: a world of one
  bool complete = false;              ///< every chunk has a snapshot of its step: nothing is replayed
  std::uint32_t slot = kNoSlot;       ///< that it is written to; kNoSlot: it does not say so
  std::uint64_t paths = 0;            ///< bit p: it is written to path p; 0: it does not say so
  /// What the update of the step applied, exact, so that replaying it gives the same bits: the caller's, at least
  /// kUpdateBytes (optim/step.h).
  std::vector<std::byte> update = std::vector<std::byte>(kUpdateBytes);
  std::vector<Ancestor> ancestors;       ///< oldest first, without the own generation
  std::vector<std::uint64_t> gradients;  ///< bit g of word g / 64: the update used gradient g
  std::vector<std::byte> payload;        ///< the caller's: data position, schedule, random state

  /// The last step that changed anything.
  [[nodiscard]] std::uint64_t applied() const noexcept { return skipped ? previous : step; }
  [[nodiscard]] bool used(std::uint32_t gradient) const noexcept;
  void use(std::uint32_t gradient);
  /// Whether a record of that generation and version belongs to the line that ends here.
  [[nodiscard]] bool in_line(std::uint32_t of, std::uint64_t version) const noexcept;
  friend bool operator==(const Commit&, const Commit&) = default;
};

/// The end of a step, as the journal's caller tells it.
struct CommitRequest {
  std::uint64_t step = 0;  ///< larger than that of the request before
  /// The last step before it that changed something, where that is later than all the journal was told of.
  std::uint64_t previous = 0;
  bool skipped = false;                    ///< the step changed nothing; `gradients` do not count
  std::span<const std::byte> update = {};  ///< at least kUpdateBytes; none: zeros
  std::span<const std::byte> payload = {};
  std::span<const std::uint32_t> gradients = {};  ///< those that the update uses
};

/// Its commit, without generation and line of steps.
[[nodiscard]] Commit make_commit(const JournalSpec& spec, const CommitRequest& request);

/// What ancestors are still needed for: records of version `oldest` or later, and those of some generations whatever
/// their version (of constant snapshots).
struct NeededLine {
  std::uint64_t oldest = 0;
  std::vector<std::uint32_t> generations = {};
};
/// The line of a generation that goes on after `last`: its ancestors and itself, without those that are not needed.
/// Throws Error(internal) when more than kMostAncestors are left.
[[nodiscard]] std::vector<Ancestor> continue_line(const Commit& last, const NeededLine& needed);
/// Leaves out ancestors that are not needed.
void prune(std::vector<Ancestor>& ancestors, const NeededLine& needed);

/// Whether the run can have such a commit: its ancestors, bits of gradients and payload are no more than are written.
[[nodiscard]] bool fits(const Commit& commit, const JournalSpec& spec) noexcept;

/// The bytes of the largest commit of a run, not rounded.
[[nodiscard]] Bytes most_commit_bytes(const JournalSpec& spec) noexcept;
[[nodiscard]] Bytes encoded_bytes(const Commit& commit) noexcept;
/// Fills `out` (at least encoded_bytes()); what is left is zero.
void encode(const Commit& commit, std::uint64_t identity, std::span<std::byte> out);
/// Reads a slot; `commit` is set when the answer is whole.
[[nodiscard]] SlotState decode(std::span<const std::byte> in, std::uint64_t identity, Commit& commit);

}  // namespace spillway::journal
