// The objects of a journal, and where in the metadata area of a path each of its records lies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::journal {

enum class Durability : std::uint8_t {
  step,        ///< gradients are kept until snapshots hold their update: every step is durable
  checkpoint,  ///< only checkpoints are durable; gradients are not the journal's
};

struct SnapshotSpec {
  std::uint32_t pieces = 1;  ///< of its largest version, over all parts
  std::uint32_t period = 1;  ///< steps between two snapshots of a chunk that is resident; 1: written every step
  bool constant = false;     ///< no step changes it: one snapshot, written before the first step, is that of every step
  bool elsewhere = false;    ///< another shard has it: this one has no snapshot of it, and no place for its records
};

/// A gradient feeds one chunk or a contiguous range of them (the rows of an embedding). It is elsewhere when all of
/// them are.
struct GradientSpec {
  std::uint32_t pieces = 1;
  std::uint32_t first_chunk = 0;
  std::uint32_t chunks = 1;
};

struct JournalSpec {
  std::string run;          ///< identity of the run; records of another one do not count
  std::uint32_t paths = 1;  ///< 1 to 64
  std::vector<SnapshotSpec> chunks;
  std::vector<GradientSpec> gradients;
  Durability durability = Durability::step;
  Bytes payload = 60 * KiB;           ///< most bytes that a commit carries for its caller
  Bytes update = 0;                   ///< of a commit's update, most bytes beside kUpdateBytes
  std::uint32_t rank = 0, world = 1;  ///< number of this shard, and how many the run has; more than one vote
  std::uint64_t line = 0;             ///< random number of the run's line, the same on all shards; 0 in a world of one
};

[[nodiscard]] bool elsewhere(const JournalSpec& spec, const GradientSpec& gradient);

inline constexpr std::uint32_t kMostPaths = 64;
inline constexpr std::uint32_t kMostPeriod = 96;
/// Records and commits are written at multiples of this and in multiples of it.
inline constexpr Bytes kMetadataAlignment = 4 * KiB;
/// Each record is written twice: a bit that flips in one copy loses nothing.
inline constexpr std::uint32_t kCopies = 2;
/// The slot of a record or commit that does not say for which one it was written.
inline constexpr std::uint32_t kNoSlot = ~std::uint32_t{0};
/// A gradient is written at most this many steps after the durable one.
inline constexpr std::uint64_t kMostStepsAhead = 3;
/// A snapshot's record goes to the one of these slots that does not hold the newest durable one.
inline constexpr std::uint32_t kSnapshotSlots = 2;

enum class ObjectKind : std::uint32_t { snapshot = 1, gradient = 2 };

/// The metadata area, the same on every path; `copy` is below kCopies. Pure arithmetic.
class MetadataLayout {
 public:
  /// Throws Error(bad_input) for a spec that cannot be kept.
  explicit MetadataLayout(const JournalSpec& spec);

  /// Bytes of metadata that each path needs: a multiple of 1 MiB.
  [[nodiscard]] Bytes bytes() const noexcept;
  /// Bytes up to the end of the last slot.
  [[nodiscard]] Bytes used() const noexcept { return kCopies * copy_bytes_; }
  /// Tells this run and this layout from every other.
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }

  [[nodiscard]] Bytes commit_bytes() const noexcept { return commit_bytes_; }
  [[nodiscard]] std::uint32_t commit_slots() const noexcept { return commit_slots_; }
  [[nodiscard]] Bytes commit(std::uint32_t copy, std::uint32_t slot) const noexcept;

  [[nodiscard]] Bytes record_bytes() const noexcept { return record_bytes_; }
  /// Slots of an object's records.
  [[nodiscard]] std::uint32_t slots(ObjectKind kind, std::uint32_t object) const noexcept;
  [[nodiscard]] std::uint32_t objects(ObjectKind kind) const noexcept;
  [[nodiscard]] Bytes record(ObjectKind kind, std::uint32_t object, std::uint32_t copy,
                             std::uint32_t slot) const noexcept;
  /// The path that holds a copy of an object's records while all paths can be written.
  [[nodiscard]] std::uint32_t home(ObjectKind kind, std::uint32_t object) const noexcept;

 private:
  std::uint32_t paths_;
  std::uint32_t snapshots_;
  // By object, and one past the last: the slots before its own.
  std::vector<std::uint32_t> first_snapshot_slot_, first_slot_;
  std::vector<std::uint32_t> gradient_home_;
  std::uint32_t commit_slots_ = 0;
  Bytes commit_bytes_ = 0, record_bytes_ = 0, copy_bytes_ = 0;
  std::uint64_t identity_ = 0;
};

}  // namespace spillway::journal
