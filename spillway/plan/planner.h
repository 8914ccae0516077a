// Where everything lives: budgets in, plan or refusal out. Pure: no I/O, no clock.
#pragma once

#include <map>
#include <string>

#include "spillway/plan/schedule.h"
#include "spillway/plan/simulate.h"

namespace spillway::plan {

/// Bytes the engine's own tables, rings and threads take beside the arena.
inline constexpr Bytes kEngineBytes = 24 * MiB;

struct Plan {
  Residency residency;
  Lookahead lookahead;
  Schedule schedule;    ///< laid out, with the dependencies that shared bytes need
  Bytes arena = 0;      ///< bytes of the DRAM arena
  Bytes resident = 0;   ///< bytes at its bottom that stay; above them, between steps, is scratch for one chunk at least
  Bytes dram_peak = 0;  ///< process + work + arena + kEngineBytes
  Bytes path_bytes = 0;        ///< on all paths
  std::vector<Bytes> volumes;  ///< by path: what its volume reserves; together at least `path_bytes`
  Bytes read_per_step = 0, written_per_step = 0;
  Simulation prediction;
  std::map<std::string, Bytes> dram_classes;  ///< who holds the arena at its fullest, by class; sums to `arena`
  std::map<std::string, Bytes> path_classes;  ///< by class; sums to `path_bytes`
};

/// The plan for these budgets. What the caller fixed in `budget.placement` is obeyed; the rest of the DRAM first holds
/// what saves most traffic per byte (weights, then activations, gradients and states), then lengthens the lookahead.
/// Throws Error(bad_input) for a path placement without a path, and Error(does_not_fit) that names the tier, the bytes
/// asked, the bytes there, and settings that would fit.
[[nodiscard]] Plan make_plan(const Description& description, const state::Layout& layout, const Budget& budget,
                             const Rates& rates);

/// plan.json.
[[nodiscard]] std::string to_json(const Plan& plan, const Description& description, const state::Layout& layout,
                                  const Budget& budget);

/// Bytes on the paths, each object rounded up to `granule`.
[[nodiscard]] std::map<std::string, Bytes> path_extents(const Description& description, const state::Layout& layout,
                                                        const Residency& residency, Bytes granule = 1 * MiB);

}  // namespace spillway::plan
