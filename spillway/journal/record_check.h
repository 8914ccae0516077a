// Whether what records and manifests say of a run's objects can be so: their bytes are input like any other, and what
// they say of lengths and places is used to read into memory.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/journal/journal_spec.h"
#include "spillway/journal/manifest.h"
#include "spillway/journal/piece.h"

namespace spillway::journal {

/// How many bytes the objects of a run have.
struct ObjectSizes {
  struct Gradient {
    Bytes bytes = 0;
    bool varies = false;  ///< a step may have less: `bytes` is the most
  };
  std::vector<std::array<Bytes, kSnapshotParts>> snapshots;  ///< by chunk, of each part
  std::vector<Gradient> gradients;
};

class RecordCheck {
 public:
  /// `sizes` has an entry for each object of `spec`, which must outlive the check. `capacities` are those of the paths,
  /// in bytes of data.
  RecordCheck(const JournalSpec& spec, ObjectSizes sizes, std::vector<Bytes> capacities);

  /// Says what is wrong with the pieces of an object: a path or a place that the run does not have, or lengths that are
  /// not those of its parts, piece by piece. The answer is empty when nothing is wrong.
  [[nodiscard]] std::string objection(ObjectKind kind, std::uint32_t object, std::span<const Piece> pieces) const;
  /// Says what is wrong with a checkpoint: with its commit, or with its snapshots, of which each chunk must have one,
  /// of the checkpoint's step, at places of its own.
  [[nodiscard]] std::string objection(const Manifest& manifest) const;

 private:
  [[nodiscard]] std::string objection(const Piece& piece) const;
  [[nodiscard]] std::string objection(const Manifest& manifest, const StoredObject& snapshot) const;

  const JournalSpec& spec_;
  const ObjectSizes sizes_;
  const std::vector<Bytes> capacities_;  ///< by path
};

}  // namespace spillway::journal
