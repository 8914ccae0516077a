// The volumes of a run: made, or opened again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "spillway/execute/volume_options.h"
#include "spillway/journal/journal_spec.h"
#include "spillway/journal/vote.h"
#include "spillway/plan/planner.h"
#include "spillway/state/layout.h"
#include "spillway/storage/path.h"
#include "spillway/storage/pool.h"

namespace spillway::execute {

struct VolumeSettings : VolumeOptions {
  std::string run;                     ///< identity of the run
  sys::RingFactory ring = {};          ///< of the paths' threads; empty: the machine's best
  state::World world = {};             ///< of which this process opens the shard of its rank
  journal::VotePort* votes = nullptr;  ///< outlives the run; null in a world of one
};

/// How they are to be opened.
enum class VolumeMode : std::uint8_t {
  make,    ///< what they held is given up
  reopen,  ///< what they hold is kept
};

/// Names, shapes, types and chunks of a model, as text; and a number that tells it from every other.
[[nodiscard]] std::string model_words(const plan::Description& description, const state::Layout& layout);
[[nodiscard]] std::uint64_t fingerprint(const plan::Description& description, const state::Layout& layout);

/// True if the places hold a run that has begun. False if none does, and if the volumes were being made when that was
/// interrupted; with `overwrite` also if they were to take the place of others, of which some are left. A volume whose
/// commits are gone belongs to the run as long as one that was made with it has some. Throws Error(bad_input) when only
/// some places hold a volume, or not of the same making. Writes nothing.
[[nodiscard]] bool holds_run(const VolumeSettings& settings, const journal::MetadataLayout& layout);

/// Throws Error(bad_input, EEXIST) when making the volumes anew would lose what the run has committed, without
/// `overwrite`. `layout`: of the records that the new ones are for; may be null.
void require_nothing_is_lost(const VolumeSettings& settings, const journal::MetadataLayout* layout);

/// True if the places hold volumes of the run without an area for records, as a run that is not durable makes them.
[[nodiscard]] bool without_records(const VolumeSettings& settings);

/// `records` bytes of metadata each; `capacities` by place: of those that are opened again the least. Errors as
/// storage::Path.
[[nodiscard]] std::vector<std::unique_ptr<storage::Path>> open_volumes(const VolumeSettings& settings,
                                                                       std::span<const Bytes> capacities, Bytes records,
                                                                       std::uint64_t model, VolumeMode mode);

/// Bytes of data that each path holds.
[[nodiscard]] std::vector<Bytes> capacities_of(std::span<const std::unique_ptr<storage::Path>> paths);

/// The paths as members of one pool. `budget` says which are on a remote NUMA node; without one none is.
[[nodiscard]] std::vector<storage::PoolPath> pool_paths(const std::vector<std::unique_ptr<storage::Path>>& paths,
                                                        const plan::Rates& rates,
                                                        std::span<const plan::PathBudget> budget = {});

}  // namespace spillway::execute
