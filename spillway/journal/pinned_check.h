// Checkpoints beside what was recovered: both name places of the same volumes, and both may have gone back to an
// earlier state without the other.
#pragma once

#include <map>
#include <string>

#include "spillway/journal/manifest.h"
#include "spillway/journal/recovery.h"

namespace spillway::journal {

class PinnedCheck {
 public:
  /// `recovered` must outlive the check.
  explicit PinnedCheck(const Recovered& recovered);

  /// Says why a checkpoint cannot exist beside what was recovered and the checkpoints that were asked about before: its
  /// commit is newer than every commit on the paths, or another object lies at one of its places. The answer is empty
  /// when nothing is wrong.
  [[nodiscard]] std::string objection(const Manifest& manifest);

 private:
  /// A piece, and the snapshot or gradient that it is of.
  struct Resident {
    bool snapshot = true;
    std::uint32_t object = 0;
    Piece piece;
    friend bool operator==(const Resident&, const Resident&) = default;
  };
  [[nodiscard]] std::string objection(const Resident& resident, std::uint64_t version);

  const Recovered& recovered_;
  std::map<storage::Place, Resident> residents_;
};

}  // namespace spillway::journal
