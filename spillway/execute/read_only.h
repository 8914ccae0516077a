// The volumes of a run, opened for reading.
#pragma once

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

  [[nodiscard]] journal::Recovered recover(const ObjectNames& names) const;

  journal::JournalSpec spec;
  journal::MetadataLayout layout;
  std::vector<std::unique_ptr<storage::Path>> paths;
  std::vector<storage::Path*> pointers;
  std::unique_ptr<journal::PathMedia> media;
  std::optional<journal::RecordCheck> check;
};

}  // namespace spillway::execute
