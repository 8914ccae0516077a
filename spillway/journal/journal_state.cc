#include "spillway/journal/journal_state.h"

#include <algorithm>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/journal/event_checks.h"

namespace spillway::journal {

using Kind = CommitJob::Kind;

JournalState::JournalState(JournalSpec spec)
    : spec_(std::move(spec)),
      layout_(spec_),
      usable_(spec_.paths == kMostPaths ? ~PathSet{0} : (PathSet{1} << spec_.paths) - 1),
      catalog_(spec_),
      flushes_(spec_.paths),
      writes_(spec_, layout_, usable_, flushes_, actions),
      pending_(spec_, layout_, catalog_, flushes_, writes_),
      jobs_(spec_, layout_, usable_, catalog_, flushes_, pending_, actions),
      goal_(layout_, catalog_),
      gathered_(catalog_) {}

// ---- opening

void JournalState::begin(const Recovered& before) {
  if (open_called_) throw Error(ErrorCode::internal, "a journal is opened a second time");
  open_called_ = true;
  generation_ = before.newest_generation + 1;
  jobs_.keep_slots(before);
}

void JournalState::open_fresh(const Recovered& before) {
  begin(before);
  fresh_ = true;
  Commit commit = compose({});
  commit.nothing = true;
  push(Kind::blank, std::move(commit));
  pump();
}

void JournalState::open_resumed(const Recovered& recovered) {
  if (!recovered.found) throw Error(ErrorCode::internal, "a run is to go on where no step is durable");
  if (recovered.newest.line != spec_.line) throw Error(ErrorCode::internal, "a run is to go on in another line");
  begin(recovered);
  catalog_.adopt(recovered);
  jobs_.follow(recovered.newest);
  open(Kind::resume, recovered.newest);
}

void JournalState::open_at(const Manifest& manifest, const Recovered& before) {
  check_manifest(layout_, manifest);
  begin(before);
  catalog_.adopt(before);
  for (std::uint32_t chunk = 0; chunk < manifest.snapshots.size(); ++chunk) {
    catalog_.take_back(chunk, manifest.snapshots[chunk], generation_);
  }
  Commit commit = manifest.commit;
  commit.line = spec_.line;
  commit.complete = true;
  commit.ancestors.clear();
  commit.gradients.clear();
  open(Kind::back, std::move(commit));
}

/// The generation begins with the step of `commit`.
void JournalState::open(Kind kind, Commit commit) {
  commit.generation = generation_;
  requested_ = commit.step;
  applied_ = commit.applied();
  newest_ = commit;
  push(kind, std::move(commit));
  pump();
}

// ---- events

void JournalState::check_open() const {
  // Writes of an earlier process may be visible without being durable. Until they are, its old places are needed.
  if (!opened_ && !failed_) throw Error(ErrorCode::internal, "a journal is used before it is open");
}

void JournalState::snapshot_written(std::uint32_t chunk, std::uint64_t version, std::span<const Piece> pieces) {
  check_open();
  check_pieces(spec_, layout_, ObjectKind::snapshot, chunk, pieces);
  check_snapshot_order(catalog_.chunks[chunk], chunk, version);
  if (failed_) return;
  Version* snapshot = catalog_.make(version, generation_, pieces);
  snapshot->tick = flushes_.written(snapshot->paths);
  // Between checkpoints only the newest snapshot can become one of the next checkpoint.
  if (spec_.durability == Durability::checkpoint && jobs_.empty()) catalog_.drop_written_before(chunk, version);
  catalog_.chunks[chunk].written.push_back(snapshot);
  pending_.add_snapshot(chunk);
  const Recordable steps = recordable();
  if (urgent() && steps && steps->has(version)) {
    flushes_.want(snapshot->paths, snapshot->tick);
    if (gathered_.has_all()) pending_.want(steps);
  }
  pump();
}

void JournalState::gradient_written(std::uint32_t gradient, std::uint64_t version, std::span<const Piece> pieces) {
  check_open();
  check_pieces(spec_, layout_, ObjectKind::gradient, gradient, pieces);
  check_gradient_order(spec_, catalog_.gradients[gradient], gradient, version, generation_, durable_);
  if (failed_) return;
  Version* v = catalog_.make(version, generation_, pieces);
  v->tick = flushes_.written(v->paths);
  if (durable_ && version <= *durable_) {
    catalog_.retire(v);  // of a step that was skipped, or whose update did without it
  } else {
    catalog_.gradients[gradient].held.push_back(v);
    const bool first = !pending_.has_gradients();
    pending_.add_gradient(gradient, v);
    pending_.place_gradients();
    if (first && pending_.has_gradients()) scan();
  }
  pump();
}

void JournalState::commit(const CommitRequest& request) {
  check_open();
  check_request(spec_, request, newest_ ? std::optional(requested_) : std::nullopt);
  if (failed_) return;
  applied_ = std::max(applied_, request.previous);
  Commit commit = compose(request);
  const bool full = fresh_ || spec_.durability == Durability::checkpoint;
  commit.complete = full;
  if (!full && !request.skipped) {
    for (const std::uint32_t gradient : request.gradients) commit.use(gradient);
  }
  requested_ = request.step;
  if (!request.skipped) applied_ = request.step;
  newest_ = commit;
  const bool first = std::exchange(fresh_, false);
  if (spec_.durability == Durability::step || first) push(full ? Kind::full : Kind::redo, std::move(commit));
  scan();
  pump();
}

/// The commit of a step of this generation.
Commit JournalState::compose(const CommitRequest& request) const {
  Commit commit = make_commit(spec_, request);
  commit.generation = generation_;
  commit.previous = applied_;
  return commit;
}

void JournalState::push(Kind kind, Commit commit) {
  if (jobs_.empty() && kind == Kind::full) gathered_.restart();
  jobs_.push({.kind = kind, .commit = std::move(commit)});
}

void JournalState::hurry() {
  check_open();
  if (failed_) return;
  hurried_ = true;
  scan();
  pump();
}

void JournalState::checkpoint(CheckpointDone done) {
  check_open();
  if (goal_.is_asked() || !newest_) {
    throw Error(ErrorCode::internal, goal_.is_asked() ? "a checkpoint is asked for while another is being made"
                                                      : "a checkpoint is asked for before the first commit");
  }
  goal_.ask(*newest_, std::move(done));
  gathered_.restart();
  if (failed_) return fail(failed_);
  const bool ahead = !durable_ || newest_->step > *durable_;
  const bool under_way = !jobs_.empty() && jobs_.last().commit.step == newest_->step && !jobs_.last().commit.nothing;
  if (spec_.durability == Durability::checkpoint && ahead && !under_way) push(Kind::full, *newest_);
  scan();
  pump();
}

void JournalState::pin(const Manifest& manifest) {
  check_manifest(layout_, manifest);
  catalog_.pin(manifest);
}

void JournalState::unpin(const Manifest& manifest) {
  check_manifest(layout_, manifest);
  check_unpinned(catalog_, manifest);
  catalog_.unpin(manifest);
  if (!failed_) pump();
}

void JournalState::path_failed(std::uint32_t path, std::exception_ptr error) {
  if (failed_) return;
  lose_path(path, error);
  pump();
}

// ---- ends of actions

void JournalState::write_ended(RecordTask* task, std::uint32_t copy, std::uint32_t path,
                               const std::exception_ptr& error) {
  if (failed_) return;
  if (error) lose_path(path, error);
  if (failed_) return;
  if (task == nullptr) {
    if (!jobs_.end_write(path, !error)) fail(error);
  } else if (error) {
    writes_.write_copy(task, copy);
  } else if (writes_.has_all(task, copy, path)) {
    record_written(task);
  }
  pump();
}

void JournalState::record_written(RecordTask* task) {
  Version* version = task->version;
  if (urgent()) flushes_.want(version->record_paths, version->record_tick);
  if (task->kind == ObjectKind::gradient) jobs_.note_record(task->object, *version);
  catalog_.record_ended(task->kind, task->object, version);
  writes_.end(task);
}

void JournalState::lose_path(std::uint32_t path, const std::exception_ptr& error) {
  if ((usable_ >> path & 1) == 0) return;
  usable_ &= ~(PathSet{1} << path);
  actions.push_back({.kind = Action::Kind::path_failed, .path = path, .error = error});
  if (usable_ == 0) fail(error);
}

void JournalState::sync_ended(std::uint32_t path, const std::exception_ptr& error) {
  if (failed_) return;
  // Writes before a failed flush may be lost, though they were reported as written.
  if (error) return fail(error);
  flushes_.finish(path);
  scan();
  pump();
}

void JournalState::voted(std::int64_t minimum, const std::exception_ptr& error) {
  if (failed_) return;
  if (error) return fail(error);
  const CommitJob& job = jobs_.first();
  if (minimum < job.vote()) {
    const auto words = text("step ", job.commit.step, " is durable on shard ", spec_.rank, " of ", spec_.world,
                            ", but another shard has only step ", minimum, "; resume the run on all of them");
    return fail(std::make_exception_ptr(Error(ErrorCode::io, words)));
  }
  jobs_.agree();
  pump();
}

void JournalState::fail(const std::exception_ptr& error) {
  failed_ = error;
  actions.push_back({.kind = Action::Kind::failed, .error = error});
  if (goal_.is_asked()) {
    actions.push_back({.kind = Action::Kind::checkpoint, .error = error, .done = goal_.end()});
  }
}

// ---- what follows from them

void JournalState::pump() {
  if (failed_) return;
  while (const auto job = jobs_.advance()) finish_commit(*job);
  if (jobs_.stalled()) pending_.want(recordable());
  writes_.issue();
  start_syncs();
  collect_released();
}

void JournalState::finish_commit(const CommitJob& job) {
  gathered_.restart();
  if (job.kind == Kind::back) catalog_.drop_gradients_but_of(generation_);
  if (job.opens()) {
    opened_ = true;
    actions.push_back({.kind = Action::Kind::opened});
  }
  if (job.kind != Kind::blank) {
    durable_ = job.commit.step;
    actions.push_back({.kind = Action::Kind::durable, .step = job.commit.step});
  }
  if (job.kind == Kind::redo) catalog_.drop_unused_gradients(job.commit);
  scan();
}

/// Looks at everything that a flush or a durable step may have changed.
void JournalState::scan() {
  pending_.settle(durable_);
  pending_.place_gradients();
  pending_.begin_snapshots(recordable());
  if (urgent()) pending_.want(recordable());
  finish_checkpoint();
}

/// True where progress is worth a flush of its own.
bool JournalState::urgent() {
  return hurried_ || jobs_.stalled() || jobs_.is(Kind::back) || pending_.has_gradients() || gathered();
}

/// True once a step that is to be durable in snapshots alone has all of them, written at least. One flush does for all
/// then.
bool JournalState::gathered() {
  if (jobs_.is(Kind::full)) return gathered_.count(jobs_.first().commit);
  return goal_.is_asked() && gathered_.count(goal_.commit());
}

Recordable JournalState::recordable() const {
  if (jobs_.is(Kind::full)) return StepRange{jobs_.first().commit.applied(), jobs_.first().commit.step};
  if (spec_.durability == Durability::checkpoint || !durable_) return std::nullopt;
  return StepRange{0, goal_.is_asked() ? std::min(*durable_, goal_.commit().step) : *durable_};
}

void JournalState::finish_checkpoint() {
  const auto manifest = goal_.make_manifest(durable_);
  if (!manifest) return;
  pin(*manifest);
  actions.push_back({.kind = Action::Kind::checkpoint, .manifest = manifest, .done = goal_.end()});
  scan();  // snapshots of later steps need not wait any more
}

void JournalState::start_syncs() {
  for (std::uint32_t path = 0; path < spec_.paths; ++path) {
    if (flushes_.start(path)) actions.push_back({.kind = Action::Kind::sync, .path = path});
  }
}

void JournalState::collect_released() {
  for (Version* version : catalog_.take_released()) {
    hurried_ = false;
    actions.push_back({.kind = Action::Kind::released, .version = version});
  }
}

}  // namespace spillway::journal
