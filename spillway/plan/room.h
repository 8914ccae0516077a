// Room for the arena within the budgets of host memory.
#pragma once

#include <vector>

#include "spillway/plan/problem.h"

namespace spillway::plan {

/// Bytes the engine's own tables, rings and threads take beside the arena.
inline constexpr Bytes kEngineBytes = 24 * MiB;

/// Bytes.
struct Room {
  Bytes auxiliary = 0;         ///< of auxiliary fields and refits: auxiliary_bytes()
  Bytes update_workspace = 0;  ///< that updates of whole matrices work on
  Bytes piece_staging = 0;     ///< for pieces that change places while steps run
  Bytes fixed = 0;             ///< what the process holds beside the arena, all of these included
  Bytes arena = 0;             ///< what it may have
  std::vector<Bytes> nodes;    ///< by NUMA node, as Budget::nodes: for all that lies there; empty: there is one

  [[nodiscard]] bool has_nodes() const noexcept { return !nodes.empty(); }
};

/// `device_arena`: bytes of a device's arena, which count where its memory is the host's.
[[nodiscard]] Room room_of(const Problem& problem, Bytes device_arena);

}  // namespace spillway::plan
