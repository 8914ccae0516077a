#include "spillway/execute/read_only.h"

#include <string>

#include "spillway/base/error.h"

namespace spillway::execute {

ReadOnly::ReadOnly(const RunPlan& plan, VolumeSettings volumes, bool records)
    : spec(journal_spec(plan.description, plan.layout, plan.ownership, plan::Durability::checkpoint, volumes.run,
                        volumes.places.size())),
      layout(spec) {
  volumes.keep = true;
  if (records && !holds_run(volumes, layout)) {
    std::string where;
    for (const auto& place : volumes.places) where += text(where.empty() ? "" : ", ", place.path.string());
    throw Error(ErrorCode::bad_input,
                text("storage: ", where.empty() ? "no path" : where, " holds nothing of the run ", volumes.run));
  }
  const std::vector<Bytes> as_they_are(volumes.places.size());
  paths = open_volumes(volumes, as_they_are, records ? layout.bytes() : 0, fingerprint(plan.description, plan.layout),
                       VolumeMode::reopen);
  for (const auto& path : paths) pointers.push_back(path.get());
  media = std::make_unique<journal::PathMedia>(pointers);
  check.emplace(spec, object_sizes(plan.description, plan.layout, spec), capacities_of(paths));
}

journal::NewestStep newest_step(const RunPlan& plan, const VolumeSettings& volumes) {
  const auto spec = journal_spec(plan.description, plan.layout, plan.ownership, plan::Durability::checkpoint,
                                 volumes.run, volumes.places.size());
  if (!holds_run(volumes, journal::MetadataLayout(spec))) return {};
  const ReadOnly there(plan, volumes);
  for (auto* path : there.pointers) path->sync();
  return journal::newest_step(there.spec, *there.media);
}

journal::Recovered ReadOnly::recover(const ObjectNames& names, std::int64_t at_most) const {
  return journal::recover(
      spec, *media,
      {.name = [&](auto kind, auto object) { return names.describe(kind, object); },
       .objection = [&](auto kind, auto object, auto pieces) { return check->objection(kind, object, pieces); },
       .at_most = at_most});
}

}  // namespace spillway::execute
