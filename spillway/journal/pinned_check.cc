#include "spillway/journal/pinned_check.h"

#include <tuple>

#include "spillway/base/error.h"

namespace spillway::journal {

PinnedCheck::PinnedCheck(const Recovered& recovered) : recovered_(recovered) {
  for (const RecoveredObject& it : recovered.snapshots) {
    for (const Piece& piece : it.stored.pieces)
      residents_.emplace(piece.place, Resident{true, it.stored.object, piece});
  }
  for (const RecoveredObject& it : recovered.gradients) {
    for (const Piece& piece : it.stored.pieces) {
      residents_.emplace(piece.place, Resident{false, it.stored.object, piece});
    }
  }
}

std::string PinnedCheck::objection(const Manifest& manifest) {
  const Commit& commit = manifest.commit;
  if (recovered_.last_commit < CommitOrder{commit.generation, !commit.nothing, commit.step}) {
    return text("it was made when step ", commit.step,
                " was durable, and the newest commit on the storage paths is of ",
                std::get<1>(recovered_.last_commit) ? text("step ", std::get<2>(recovered_.last_commit))
                                                    : std::string("no step"),
                ": the paths went back to an earlier state, or lost what they had said was flushed. Put back what the ",
                "paths held last, or remove this checkpoint to go on from what they hold");
  }
  for (const StoredObject& snapshot : manifest.snapshots) {
    for (const Piece& piece : snapshot.pieces) {
      auto wrong = objection({true, snapshot.object, piece}, snapshot.version);
      if (!wrong.empty()) return wrong;
    }
  }
  return {};
}

std::string PinnedCheck::objection(const Resident& resident, std::uint64_t version) {
  const auto [it, is_new] = residents_.emplace(resident.piece.place, resident);
  if (is_new || it->second == resident) return {};
  return text("its snapshot of chunk ", resident.object, " of step ", version, " lies at piece ",
              resident.piece.place.piece, " of path ", resident.piece.place.path, ", which holds ",
              it->second.snapshot ? "another snapshot of chunk " : "the gradient ", it->second.object,
              ": the checkpoint had been removed and its places used again. Remove it");
}

}  // namespace spillway::journal
