#include "spillway/execute/run_storage.h"

#include <algorithm>
#include <cerrno>

#include "spillway/base/error.h"
#include "spillway/execute/manifest_file.h"
#include "spillway/execute/names.h"
#include "spillway/journal/pinned_check.h"
#include "spillway/journal/record_check.h"
#include "spillway/journal/scrub.h"
#include "spillway/storage/superblock.h"

namespace spillway::execute {
namespace {

/// Times that volumes are looked at again because another process of the run had them, and has removed them since, or
/// has made them and recorded steps.
constexpr int kLooks = 8;

/// Throws where a checkpoint lies on storage paths, and there is nothing to go back to.
void require_no_checkpoint(const OpenOptions& open_options) {
  if (!open_options.checkpoint) return;
  throw Error(ErrorCode::bad_input, text(open_options.checkpoint->string(),
                                         " lies on storage paths, but these hold nothing of this run; name the ",
                                         "paths that the run was started with, and a durability other than none"));
}

/// Whatever the run is to go on from: what a drive does not give now may be there, and needed, the next time.
void require_read(const journal::Recovered& recovered) {
  if (recovered.unread.empty()) return;
  throw Error(ErrorCode::io, text("storage: commits of the run cannot be read, and what is written without them could ",
                                  "destroy it: ", recovered.unread, ". Nothing was written; resume when the drive ",
                                  "can be read, or `spillway export` what it still gives"));
}

/// A checkpoint beside what the paths hold, where either went back to an earlier state without the other.
void require_pinned(journal::PinnedCheck& check, const std::filesystem::path& directory,
                    const journal::Manifest& manifest, const state::World& world) {
  const auto wrong = check.objection(manifest);
  if (wrong.empty()) return;
  const auto file = (directory / manifest_name(world)).string();
  throw Error(ErrorCode::corrupt, text(file, ": ", wrong, ". Nothing was written"), 0, file);
}

/// The pieces of an object that lie on paths that went back.
journal::StoredObject select_stale(const journal::StoredObject& object, std::span<const journal::StalePath> stale) {
  journal::StoredObject out = object;
  std::erase_if(out.pieces, [&](const journal::Piece& piece) {
    return std::ranges::find(stale, piece.place.path, &journal::StalePath::path) == stale.end();
  });
  return out;
}

/// Shards of one run whose lines differ have gone apart: one of them was begun anew, or went back to a checkpoint.
void require_line(const journal::Recovered& recovered, const journal::JournalSpec& spec) {
  if (recovered.newest.line == spec.line || (!recovered.found && !recovered.cut_off)) return;
  throw Error(ErrorCode::bad_input,
              text("storage: shard ", spec.rank, " of ", spec.world, " holds step ", recovered.newest.step,
                   " of the line ", recovered.newest.line, " of this run, which goes on in the line ", spec.line,
                   "; go back to the checkpoint with which that one began, or start anew with --overwrite"));
}

}  // namespace

void RunStorage::require_nothing_there() const {
  if (volumes_.places.empty()) return;
  // Its records lie alike, whatever its durability.
  const auto spec = journal_spec(plan_.description, plan_.layout, plan_.ownership, plan::Durability::checkpoint,
                                 volumes_.run, volumes_.places.size());
  if (!holds_run(volumes_, journal::MetadataLayout(spec))) return;
  throw Error(ErrorCode::bad_input,
              text("storage: the paths hold finished steps of the run ", volumes_.run, ", and this plan reads none, ",
                   "since it keeps nothing there (durability ", plan::name_of(plan_.plan.durability), "); go on with ",
                   "durability step, or checkpoint and Budget::resumes, or begin anew without `reopen`. Nothing was ",
                   "changed"));
}

bool RunStorage::open(const OpenOptions& open_options, Recovery& recovery) {
  return open(open_options, recovery, kLooks);
}

bool RunStorage::open(const OpenOptions& open_options, Recovery& recovery, int looks) {
  std::optional<journal::JournalSpec> spec;
  std::optional<journal::MetadataLayout> layout;  // of their records
  if (plan_.durable()) {
    spec = journal_spec(plan_.description, plan_.layout, plan_.ownership, plan_.plan.durability, volumes_.run,
                        volumes_.places.size());
    spec->line = open_options.line;
    if ((spec->world > 1) != (spec->line != 0)) {
      throw Error(ErrorCode::bad_input, text("a world of ", spec->world, " is opened with the line ", spec->line,
                                             ": processes that share a run name its line, and no other does"));
    }
    layout.emplace(*spec);
  }
  const bool there = layout && open_options.reopen && holds_run(volumes_, *layout);
  const auto open_as = [&](std::span<const Bytes> capacities) {
    open_paths(capacities, spec, there ? VolumeMode::reopen : VolumeMode::make);
    if (there) read(open_options, recovery);
    return recovery.has_step || !open_options.if_found;
  };
  try {
    if (!there) {
      require_no_checkpoint(open_options);
      if (open_options.if_found) return false;
      require_nothing_is_lost(volumes_, layout ? &*layout : nullptr);
    }
    // Volumes that the run cannot go on with are not enlarged first.
    if (there && !open_as(std::vector<Bytes>(volumes_.places.size()))) return false;
    if (!there || !large_enough()) static_cast<void>(open_as(plan_.plan.volumes));
  } catch (const Error& error) {
    const bool changed = open_options.reopen && error.errno_value() == (there ? ENOENT : EEXIST);
    if (!changed || looks <= 1) throw;
    return open(open_options, recovery, looks - 1);
  }
  return true;
}

void RunStorage::open_paths(std::span<const Bytes> capacities, const std::optional<journal::JournalSpec>& spec,
                            VolumeMode mode) {
  journal_.reset();
  paths_.clear();
  path_pointers_.clear();
  const Bytes records = spec ? journal::MetadataLayout(*spec).bytes() : 0;
  paths_ = open_volumes(volumes_, capacities, records, fingerprint(plan_.description, plan_.layout), mode);
  for (const auto& path : paths_) path_pointers_.push_back(path.get());
  if (!spec) return;
  journal_ = std::make_unique<journal::RunJournal>(*spec, path_pointers_, plan_.plan.path_spare / 2, volumes_.votes);
}

bool RunStorage::large_enough() const {
  return std::ranges::equal(paths_, plan_.plan.volumes,
                            [](const auto& path, Bytes capacity) { return path->capacity() >= capacity; });
}

void RunStorage::read(const OpenOptions& open_options, Recovery& recovery) {
  const auto phases = recovery.phases;
  recovery = {};
  recovery.phases = phases;
  found_ = {};
  const journal::RecordCheck check(journal_->spec(), object_sizes(plan_.description, plan_.layout, journal_->spec()),
                                   capacities_of(paths_));
  if (open_options.pinned) {
    for (const auto& directory : open_options.pinned()) {
      found_.pinned_directories.push_back(directory);
      found_.pinned.push_back(read_manifest(directory, journal_->identity(), check, volumes_.world));
    }
  }
  if (open_options.checkpoint) {
    found_.back = read_manifest(*open_options.checkpoint, journal_->identity(), check, volumes_.world);
  }
  const Clocked clocked(recovery.phases.records);
  const ObjectNames names(plan_.description, plan_.layout);
  auto& recovered = found_.recovered;
  recovered = journal::recover(
      journal_->spec(), journal_->media(),
      {.name = [&](auto kind, auto object) { return names.describe(kind, object); },
       .objection = [&](auto kind, auto object, auto pieces) { return check.objection(kind, object, pieces); },
       .pinned = found_.pinned,
       .at_most = found_.back ? std::numeric_limits<std::int64_t>::max() : open_options.at_most});
  for (const auto& damage : recovered.damage) {
    recovery.damage.push_back(
        text("path:", damage.path, " at byte ", storage::kSuperblockExtent + damage.offset, ": ", damage.what));
  }
  require_read(recovered);
  require_pinned_exist(open_options);
  require_stale_paths_hold(recovered);
  if (!found_.back) require_line(recovered, journal_->spec());
  recovery.cut_off = recovered.cut_off;
  if (open_options.known_step > recovered.highest_step) recovery.lost_until = open_options.known_step;
  const bool counts = recovered.found && recovered.newest.step >= open_options.at_least;
  if (found_.back) return recovery.take(found_.back->commit, *plan_.description.optimizer);
  if (counts) return recovery.take(recovered.newest, *plan_.description.optimizer);
  if (open_options.at_least > 0 || recovered.damage.empty()) return;
  throw Error(ErrorCode::corrupt, text("no durable step was found on the storage paths, and ", recovery.damage.size(),
                                       " of their records are damaged, the first is ", recovery.damage.front(),
                                       ". Resume from a checkpoint, or start anew with --overwrite"));
}

void RunStorage::require_pinned_exist(const OpenOptions& open_options) const {
  journal::PinnedCheck check(found_.recovered);
  for (std::size_t i = 0; i < found_.pinned.size(); ++i) {
    require_pinned(check, found_.pinned_directories[i], found_.pinned[i], volumes_.world);
  }
  if (found_.back) require_pinned(check, *open_options.checkpoint, *found_.back, volumes_.world);
}

/// Content of a stale path is read from end to end: it counts if every byte is the one that was written.
void RunStorage::require_stale_paths_hold(const journal::Recovered& recovered) const {
  if (recovered.stale_paths.empty()) return;
  std::vector<journal::StoredObject> stored;
  if (found_.back) {
    for (const auto& it : found_.back->snapshots) stored.push_back(select_stale(it, recovered.stale_paths));
  } else {
    for (const auto& it : recovered.snapshots) stored.push_back(select_stale(it.stored, recovered.stale_paths));
    for (const auto& it : recovered.gradients) stored.push_back(select_stale(it.stored, recovered.stale_paths));
  }
  std::vector<journal::ScrubObject> objects;
  objects.reserve(stored.size());
  for (const auto& it : stored) objects.push_back({journal::ObjectKind::snapshot, &it});
  const auto damage = journal::scrub(path_pointers_, objects).damage;
  if (damage.empty()) return;
  const auto path = damage.front().piece.place.path;
  const auto& stale = *std::ranges::find(recovered.stale_paths, path, &journal::StalePath::path);
  const auto file = paths_[path]->volume().string();
  throw Error(ErrorCode::corrupt,
              text(file, " (path:", path, ") went back to an earlier state, or lost what it had said was flushed: its ",
                   "newest commit is of ", stale.step ? text("step ", *stale.step) : std::string("no step"),
                   ", although that of step ", stale.durable, " had been durable there, and ", damage.size(),
                   " pieces of what the run goes on from are not what was written. Put back what the path held last, ",
                   "or resume from a checkpoint. Nothing was written"),
              0, file);
}

void RunStorage::start(const Recovery& recovery) {
  pool_ = std::make_unique<storage::Pool>(pool_paths(paths_, plan_.rates, plan_.budget.paths),
                                          journal_ ? journal_->pool_options() : storage::PoolOptions{});
  if (journal_) open_journal(recovery.has_step);
  store_ = std::make_unique<Store>(plan_.plan, plan_.description, plan_.layout, *pool_, journal_.get());
}

void RunStorage::open_journal(bool resume) {
  journal_->attach(*pool_);
  // If the run begins anew, a step that does not count is gone once the journal is open; checkpoints stay.
  const bool counts = resume || found_.back;
  for (const auto place : counts ? found_.recovered.places : journal::places_of(found_.pinned)) pool_->claim(place);
  journal_->open({.before = &found_.recovered,
                  .back = found_.back ? &*found_.back : nullptr,
                  .resume = resume,
                  .pinned = found_.pinned});
}

Replay RunStorage::replay(ThreadPool& thread_pool) {
  const Replay::Parts parts{plan_.description, plan_.layout, path_pointers_, *pool_, thread_pool};
  return found_.back ? Replay(parts, *found_.back) : Replay(parts, found_.recovered);
}

void RunStorage::started() {
  found_ = {};
  remove_on_close(!volumes_.keep);
}

void RunStorage::remove_on_close(bool remove) noexcept {
  for (const auto& path : paths_) path->remove_on_close(remove);
}

void RunStorage::stop() noexcept {
  if (journal_) journal_->stop();
  if (pool_) pool_->close();
}

}  // namespace spillway::execute
