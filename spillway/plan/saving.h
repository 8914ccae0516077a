// Bytes of checkpoints and the final model on file systems, and the rest that is left to the volumes there. Pure.
#pragma once

#include "spillway/plan/description.h"
#include "spillway/plan/storage_need.h"

namespace spillway::plan {

struct SavingNeed {
  Bytes weights = 0;          ///< of one checkpoint: files of weights
  Bytes checkpoint = 0;       ///< of the largest checkpoint, all of it
  std::uint32_t at_once = 0;  ///< most checkpoints that exist at once, the one that is being written included
  Bytes bytes = 0;  ///< most that output_dir's file system loses from the start on, beside what its volumes take
};

/// `manifests`: checkpoints name places on the paths instead of holding the state, except those of Saving::whole.
[[nodiscard]] SavingNeed saving_need(const Description& description, const state::Layout& layout, const Saving& saving,
                                     bool manifests);

/// `budget` with capacities that leave on every file system what it does not have, and on that of output_dir the bytes
/// that saving takes. Throws Error(does_not_fit) where saving alone takes more than is there, or where what a file
/// system leaves is too little for `need` and the `overhead` of each path.
[[nodiscard]] Budget leave_room(const Budget& budget, const SavingNeed& saving, const StorageNeed& need,
                                Bytes overhead);

}  // namespace spillway::plan
