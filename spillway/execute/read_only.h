// The volumes of a run, opened for reading.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "spillway/execute/journal_objects.h"
#include "spillway/execute/names.h"
#include "spillway/execute/run_plan.h"
#include "spillway/execute/volumes.h"
#include "spillway/journal/path_media.h"
#include "spillway/journal/record_check.h"
#include "spillway/journal/recovery.h"

namespace spillway::execute {

struct ReadOnly {
  /// `records`: whether the volumes must have some. Throws Error(bad_input) when they hold nothing of the run.
  ReadOnly(const RunPlan& plan, VolumeSettings volumes, bool records = true);

  /// `at_most` as journal::RecoveryOptions has it.
  [[nodiscard]] journal::Recovered recover(const ObjectNames& names,
                                           std::int64_t at_most = std::numeric_limits<std::int64_t>::max()) const;

  journal::JournalSpec spec;
  journal::MetadataLayout layout;
  std::vector<std::unique_ptr<storage::Path>> paths;
  std::vector<storage::Path*> pointers;
  std::unique_ptr<journal::PathMedia> media;
  std::optional<journal::RecordCheck> check;
};

/// The step that is durable on this process's volumes, which are opened for that, flushed and closed again. Nothing
/// where they hold nothing of the run. Throws Error(bad_input) as holds_run() and storage::Path do.
[[nodiscard]] journal::NewestStep newest_step(const RunPlan& plan, const VolumeSettings& volumes);

}  // namespace spillway::execute
