// The planner decides where everything lives: it turns budgets into a plan, or refuses. It does no input or output and
// reads no clock.
#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "spillway/plan/axes.h"
#include "spillway/plan/room.h"
#include "spillway/plan/saving.h"
#include "spillway/plan/simulate.h"
#include "spillway/plan/trial.h"

namespace spillway::plan {

/// Seconds of a step that spilling one layer of average size takes, and the seconds that it saves.
struct SpillCost {
  double path_seconds = 0;       ///< of all paths at their mixed rate, both ways; 0: unknown, or none can
  double copy_seconds = 0;       ///< of compute, to bring what is saved together
  double recompute_seconds = 0;  ///< of compute, where the layer recomputes instead
};

/// A plan of the same budgets, were every tensor that is reduced to be trained in full.
struct InFull {
  bool fits = false;                ///< else what follows is 0
  double step_seconds = 0;          ///< predicted, with the products of whole gradients
  double hidden_seconds = 0;        ///< the same, were these products free: what its transfers and updates make of it
  Bytes on_paths = 0, on_link = 0;  ///< moved by a step, both ways

  /// Fewer bytes save this share of a step's time or less: those in full are hidden behind compute already.
  static constexpr double kNoHelp = 0.02;
};

/// A placement that is laid out, its schedule with the dependencies that shared bytes need.
struct Plan : LaidOut {
  Decisions decisions = {};             ///< blocks that a device updates, layers that keep or spill and where to
  std::vector<Compared> compared = {};  ///< values of axes that the caller left to the search
  Durability durability = Durability::none;
  bool ample = false;   ///< all that was tried had room: more DRAM would not change the plan. False says nothing
  Bytes resident = 0;   ///< bytes at its bottom that stay; above them, between steps, is scratch for one chunk at least
  Bytes auxiliary = 0;  ///< bytes of auxiliary fields and of refits, beside the arena
  Bytes update_workspace = 0;  ///< bytes that updates of whole matrices work on, beside the arena
  Bytes piece_staging = 0;     ///< bytes for pieces that change places while steps run, beside the arena
  Bytes dram_peak = 0;         ///< process + work + arena + kEngineBytes + these three + kept_logits + saved, and the
                               ///< device's arena where that is in DRAM
  std::uint64_t kept_slices = 0;  ///< of the head: their logits are kept from the loss to its gradient, not made again
  Bytes kept_logits = 0;          ///< that they take at most, outside of the arena
  std::vector<Index> keeping;     ///< blocks of layers that keep what autograd saves of them from forward to backward
  std::vector<Index> spilling;    ///< blocks of layers that send it to a path in forward, and have it back in backward
  Bytes saved = 0;        ///< that all of these hold at most, outside of the arena: in `dram_peak`, or `device_peak`
  SpillCost spill_cost;   ///< where layers may spill
  Bytes device_peak = 0;  ///< with PyTorch's working set there
  std::vector<Bytes> node_peaks;  ///< by node, as Budget::nodes: sums to `dram_peak`; empty: there is one
  Bytes path_bytes = 0;           ///< on all paths, without what follows
  Bytes path_overhead = 0;        ///< of each path: superblock and records
  Bytes path_spare = 0;           ///< of `path_bytes`, for snapshots that wait for a flush
  std::vector<Bytes> volumes;     ///< by path: what its volume reserves for data; together at least `path_bytes`
  Bytes read_per_step = 0, written_per_step = 0;
  Bytes to_device_per_step = 0, from_device_per_step = 0;
  std::string device_blocks_why_not = {};  ///< why there was none, in words; empty: there was
  Simulation prediction;
  std::optional<InFull> in_full;  ///< none: nothing is reduced
  std::size_t early_chunks = 0;   ///< updated during backward (Budget::updates)
  Bytes undo = 0;                 ///< that old versions of these take, in memory that backward has let go
  double early_saves = 0;         ///< seconds of the predicted step; negative: early updates were asked for and cost
  Bytes durable_per_step = 0;     ///< bytes of `written_per_step` that durability costs
  double durable_seconds = 0;     ///< of the predicted step that durability costs
  std::optional<double> remote_seconds;  ///< of the predicted step that remote drives cost; none: there are none, or it
                                         ///< is not known
  std::map<std::string, Bytes> dram_breakdown;    ///< who holds the arena at its fullest, by class; sums to `arena`
  std::map<std::string, Bytes> device_breakdown;  ///< the same of the device's arena
  std::map<std::string, Bytes> path_breakdown;    ///< by class; sums to `path_bytes`
  std::optional<SavingNeed> saving;               ///< none: nobody knows what is saved

  /// The values of one axis that were compared, in that order; none: the value was given, or there was no choice.
  [[nodiscard]] std::vector<Compared> compared_on(Axis axis) const {
    std::vector<Compared> out;
    std::ranges::copy_if(compared, std::back_inserter(out), [&](const Compared& it) { return it.axis == axis; });
    return out;
  }
};

/// The plan for these budgets. What the caller fixed in `budget.placement` is obeyed; the rest of the DRAM first holds
/// what saves most traffic per byte (weights, then activations, gradients and states), then lengthens the lookahead,
/// and what is left keeps logits, where the budget says that the caller can. As many layers keep what autograd saves of
/// them as the budget asks, or as make the step fastest by simulation; none of them sends to a path what has room in
/// memory without.
/// With a device, as many blocks live there, and of the others as many pass, as make the step fastest by simulation; of
/// equals (a percent) the numbers that move least. With several NUMA nodes what stays is distributed to them (nodes.h)
/// as is fastest by simulation, within the budget of each. Without `budget.durability`, steps are durable when anything
/// is on a path. `checkpoint` where weights and states are all in DRAM becomes `none`: such a checkpoint stands alone
/// anyway. Throws Error(bad_input) for a path placement or durable steps without a path, and Error(does_not_fit) that
/// names the tier, the bytes asked, the bytes there, and settings that would fit.
[[nodiscard]] Plan make_plan(const Description& description, const state::Layout& layout, const Budget& budget,
                             const Rates& rates);

/// Plans without `in_full`, which takes two plans more.
[[nodiscard]] Plan plan_alone(const Description& description, const state::Layout& layout, const Budget& budget,
                              const Rates& rates);

/// True if the plan fits that keeps nothing optional in memory. The check skips the search for a faster plan; true
/// means that there is a plan. False says nothing.
[[nodiscard]] bool least_fits(const Description& description, const state::Layout& layout, const Budget& budget,
                              const Rates& rates);

/// True if fewer bytes do not make this plan faster than the one in full, within InFull::kNoHelp.
[[nodiscard]] bool no_help(const Plan& plan) noexcept;

}  // namespace spillway::plan
