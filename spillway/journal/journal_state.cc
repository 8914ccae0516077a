#include "spillway/journal/journal_state.h"

#include <algorithm>
#include <utility>

#include "spillway/base/error.h"

namespace spillway::journal {

JournalState::JournalState(JournalSpec spec)
    : spec_(std::move(spec)),
      layout_(spec_),
      catalog_(spec_),
      flushes_(spec_.paths),
      usable_(spec_.paths == kMostPaths ? ~PathSet{0} : (PathSet{1} << spec_.paths) - 1),
      listed_(spec_.chunks.size()),
      commit_buffer_(layout_.commit_bytes()) {}

// ---- opening

void JournalState::begin(const Recovered& before) {
  if (open_called_) throw Error(ErrorCode::internal, "a journal is opened a second time");
  open_called_ = true;
  generation_ = before.newest_generation + 1;
  newest_slot_ = before.newest_slot;
  for (const RecoveredCommit& c : before.commits) held_.push_back({c.commit.step, c.slot, false});
}

void JournalState::adopt_snapshot(const RecoveredObject& snapshot) {
  const StoredObject& stored = snapshot.stored;
  if (spec_.chunks[stored.object].elsewhere) return;
  Version* version = catalog_.find(stored.object, stored.pieces);
  if (version == nullptr) version = catalog_.make(stored.version, snapshot.generation, stored.pieces);
  version->live = true;
  version->generation = snapshot.generation;
  version->slot = snapshot.slot;
  version->recorded = true;
  catalog_.chunks[stored.object].trusted = version;
}

void JournalState::adopt(const Recovered& recovered) {
  for (const RecoveredObject& snapshot : recovered.snapshots) adopt_snapshot(snapshot);
  for (const RecoveredObject& gradient : recovered.gradients) {
    const StoredObject& stored = gradient.stored;
    Version* version = catalog_.make(stored.version, gradient.generation, stored.pieces);
    version->slot = gradient.slot;
    version->recorded = true;
    catalog_.gradients[stored.object].held.push_back(version);
  }
}

void JournalState::open_fresh(const Recovered& before) {
  begin(before);
  fresh_ = true;
  Job job;
  job.kind = Kind::blank;
  job.commit = compose({});
  job.commit.nothing = true;
  push(std::move(job));
  pump();
}

void JournalState::open_resumed(const Recovered& recovered) {
  if (!recovered.found) throw Error(ErrorCode::internal, "a run is to go on where no step is durable");
  if (recovered.newest.line != spec_.line) throw Error(ErrorCode::internal, "a run is to go on in another line");
  begin(recovered);
  adopt(recovered);
  Job job;
  job.kind = Kind::resume;
  job.commit = recovered.newest;
  job.commit.generation = generation_;
  ancestors_ = continue_line(recovered.newest, catalog_.needed_line());
  requested_ = job.commit.step;
  applied_ = job.commit.applied();
  newest_ = job.commit;
  push(std::move(job));
  pump();
}

void JournalState::open_at(const Manifest& manifest, const Recovered& before) {
  check_manifest(manifest);
  begin(before);
  adopt(before);
  for (std::uint32_t chunk = 0; chunk < manifest.snapshots.size(); ++chunk) take_back(chunk, manifest.snapshots[chunk]);
  Job job;
  job.kind = Kind::back;
  job.commit = manifest.commit;
  job.commit.generation = generation_;
  job.commit.line = spec_.line;
  job.commit.complete = true;
  job.commit.ancestors.clear();
  job.commit.gradients.clear();
  requested_ = job.commit.step;
  applied_ = job.commit.applied();
  newest_ = job.commit;
  push(std::move(job));
  pump();
}

/// The snapshot of a checkpoint becomes the one that is to count.
void JournalState::take_back(std::uint32_t chunk, const StoredObject& snapshot) {
  if (spec_.chunks[chunk].elsewhere) return;
  Catalog::Chunk& c = catalog_.chunks[chunk];
  Version* version = catalog_.find(chunk, snapshot.pieces);
  if (version == nullptr) version = catalog_.make(snapshot.version, generation_, snapshot.pieces);
  const std::uint32_t trusted_slot = c.trusted == nullptr ? 1 : c.trusted->slot;
  if (version == c.trusted) {
    // Its old record counts until the new line has begun; the places stay.
    c.trusted = catalog_.make(version->version, version->generation, {});
    c.trusted->slot = trusted_slot;
  }
  version->live = true;
  version->recorded = false;
  version->generation = generation_;
  version->slot = 1 - trusted_slot;
  c.recording = version;
}

// ---- events

void JournalState::check_open() const {
  // What an earlier process left may be visible without being durable; until it is, its old places are needed.
  if (!opened_ && !failed_) throw Error(ErrorCode::internal, "a journal is used before it is open");
}

void JournalState::check_pieces(ObjectKind kind, std::uint32_t object, std::span<const Piece> pieces) const {
  check_open();
  if (object >= layout_.objects(kind)) {
    throw Error(ErrorCode::internal, text(kind == ObjectKind::snapshot ? "chunk " : "gradient ", object,
                                          " was written; ", layout_.objects(kind), " were announced"));
  }
  if (layout_.slots(kind, object) == 0) {
    throw Error(ErrorCode::internal, text(kind == ObjectKind::snapshot ? "chunk " : "gradient ", object,
                                          " was written, which another shard has"));
  }
  const std::uint32_t most =
      kind == ObjectKind::snapshot ? spec_.chunks[object].pieces : spec_.gradients[object].pieces;
  if (pieces.empty() || pieces.size() > most) {
    throw Error(ErrorCode::internal, text("an object of ", pieces.size(), " pieces; 1 to ", most, " were announced"));
  }
  for (const Piece& piece : pieces) {
    if (piece.place.path >= spec_.paths) {
      throw Error(ErrorCode::internal, text("a piece on path ", piece.place.path, "; there are ", spec_.paths));
    }
  }
}

void JournalState::check_newer(std::uint32_t chunk, std::uint64_t version) const {
  const Catalog::Chunk& c = catalog_.chunks[chunk];
  const Version* newest = !c.written.empty() ? c.written.back() : c.recording != nullptr ? c.recording : c.trusted;
  if (newest == nullptr || version > newest->version) return;
  throw Error(ErrorCode::internal, text("the snapshot of chunk ", chunk, " of step ", version,
                                        " was written after that of ", "step ", newest->version));
}

void JournalState::snapshot_written(std::uint32_t chunk, std::uint64_t version, std::span<const Piece> pieces) {
  check_pieces(ObjectKind::snapshot, chunk, pieces);
  check_newer(chunk, version);
  if (failed_) return;
  Version* snapshot = catalog_.make(version, generation_, pieces);
  snapshot->tick = flushes_.written(snapshot->paths);
  // Between checkpoints only the newest snapshot can become one of the next checkpoint.
  if (spec_.durability == Durability::checkpoint && jobs_.empty()) catalog_.drop_written_before(chunk, version);
  catalog_.chunks[chunk].written.push_back(snapshot);
  if (!listed_[chunk]) unrecorded_.push_back(chunk);
  listed_[chunk] = true;
  if (urgent() && recordable(*snapshot)) {
    flushes_.want(snapshot->paths, snapshot->tick);
    if (gathered_ == catalog_.chunks.size()) want_epoch();
  }
  pump();
}

void JournalState::gradient_written(std::uint32_t gradient, std::uint64_t version, std::span<const Piece> pieces) {
  check_pieces(ObjectKind::gradient, gradient, pieces);
  if (spec_.durability != Durability::step) {
    throw Error(ErrorCode::internal, "gradients have no records when only checkpoints are durable");
  }
  const std::vector<Version*>& held = catalog_.gradients[gradient].held;
  if (!held.empty() && held.back()->generation == generation_ && version <= held.back()->version) {
    throw Error(ErrorCode::internal, text("gradient ", gradient, " of step ", version,
                                          " was written after that of step ", held.back()->version));
  }
  if (durable_ && version > *durable_ + kMostStepsAhead) {
    throw Error(ErrorCode::internal, text("gradient ", gradient, " of step ", version, " was written while only step ",
                                          *durable_, " is durable"));
  }
  if (failed_) return;
  Version* v = catalog_.make(version, generation_, pieces);
  v->tick = flushes_.written(v->paths);
  if (durable_ && version <= *durable_) {
    catalog_.retire(v);  // of a step that was skipped, or whose update did without it
  } else {
    catalog_.gradients[gradient].held.push_back(v);
    slotless_.emplace_back(gradient, v);
    ++v->writing;  // whoever drops it meanwhile leaves it to place_gradients
    const bool first = slotless_.size() == 1;
    place_gradients();
    if (first && !slotless_.empty()) scan();
  }
  pump();
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
  if (goal_ || !newest_) {
    throw Error(ErrorCode::internal, goal_ ? "a checkpoint is asked for while another is being made"
                                           : "a checkpoint is asked for before the first commit");
  }
  goal_ = Goal{*newest_, std::move(done)};
  gathered_ = 0;
  if (failed_) return fail(failed_);
  const bool ahead = !durable_ || newest_->step > *durable_;
  const bool under_way = !jobs_.empty() && jobs_.back().commit.step == newest_->step && !jobs_.back().commit.nothing;
  if (spec_.durability == Durability::checkpoint && ahead && !under_way) {
    Job job;
    job.kind = Kind::full;
    job.commit = *newest_;
    push(std::move(job));
  }
  scan();
  pump();
}

void JournalState::check_manifest(const Manifest& manifest) const {
  if (manifest.identity == layout_.identity() && manifest.snapshots.size() == catalog_.chunks.size()) return;
  throw Error(ErrorCode::bad_input,
              "a checkpoint is of another run, model or set of paths; use it with those it was "
              "made with, or export it where they are");
}

void JournalState::pin(const Manifest& manifest) {
  check_manifest(manifest);
  for (const StoredObject& snapshot : manifest.snapshots) {
    if (!snapshot.pieces.empty()) catalog_.pin(snapshot.object, snapshot.version, snapshot.pieces);
  }
}

void JournalState::unpin(const Manifest& manifest) {
  check_manifest(manifest);
  for (const StoredObject& snapshot : manifest.snapshots) {
    const Version* held = catalog_.find(snapshot.object, snapshot.pieces);
    if (snapshot.pieces.empty() || (held != nullptr && held->pins != 0)) continue;
    throw Error(ErrorCode::internal, text("the snapshot of chunk ", snapshot.object, " of step ", snapshot.version,
                                          " is given up by a checkpoint that does not hold it"));
  }
  for (const StoredObject& snapshot : manifest.snapshots) {
    if (!snapshot.pieces.empty()) catalog_.unpin(snapshot.object, snapshot.pieces);
  }
  if (!failed_) pump();
}

// ---- what follows from them

void JournalState::pump() {
  if (failed_) return;
  advance_commit();
  issue_records();
  start_syncs();
  collect_released();
}

/// Looks at everything that a flush or a durable step may have changed.
void JournalState::scan() {
  settle_snapshots();
  place_gradients();
  begin_snapshot_records();
  if (urgent()) want_epoch();
  finish_checkpoint();
}

/// Whether it is worth a flush of its own that something goes on.
bool JournalState::urgent() {
  const bool back = !jobs_.empty() && jobs_.front().kind == Kind::back;
  return hurried_ || stalled_ || back || !slotless_.empty() || gathered();
}

/// Whether a step that is to be durable in snapshots alone has all of them, written at least: then one flush does for
/// all.
bool JournalState::gathered() {
  const bool full = !jobs_.empty() && jobs_.front().kind == Kind::full;
  if (!full && !goal_) return false;
  const Commit& of = full ? jobs_.front().commit : goal_->commit;
  const auto fits = [&](const Version* v) {
    return catalog_.is_of(static_cast<std::uint32_t>(gathered_), v, of.applied(), of.step);
  };
  for (; gathered_ < catalog_.chunks.size(); ++gathered_) {
    const Catalog::Chunk& c = catalog_.chunks[gathered_];
    if (!fits(c.trusted) && !fits(c.recording) && std::none_of(c.written.begin(), c.written.end(), fits)) return false;
  }
  return true;
}

bool JournalState::recordable(const Version& version) const {
  if (!jobs_.empty() && jobs_.front().kind == Kind::full) {
    const Commit& commit = jobs_.front().commit;
    return commit.applied() <= version.version && version.version <= commit.step;
  }
  if (spec_.durability == Durability::checkpoint || !durable_) return false;
  return version.version <= (goal_ ? std::min(*durable_, goal_->commit.step) : *durable_);
}

void JournalState::settle_snapshots() {
  std::erase_if(recording_, [&](std::uint32_t chunk) {
    const Version* v = catalog_.chunks[chunk].recording;
    const bool counts =
        v->recorded && durable_ && v->version <= *durable_ && flushes_.cover(v->record_paths, v->record_tick);
    if (counts) catalog_.trust(chunk);
    return counts;
  });
}

void JournalState::place_gradients() {
  std::erase_if(slotless_, [&](const std::pair<std::uint32_t, Version*>& waiting) {
    const auto [gradient, version] = waiting;
    if (!version->live) {
      catalog_.record_ended(ObjectKind::gradient, gradient, version);
      return true;
    }
    version->slot = catalog_.free_slot(gradient, layout_.slots(ObjectKind::gradient, gradient));
    if (version->slot == Version::kNoSlot) return false;
    --version->writing;
    queue_record(ObjectKind::gradient, gradient, version);
    return true;
  });
}

void JournalState::begin_snapshot_records() {
  for (const std::uint32_t chunk : unrecorded_) begin_snapshot_record(chunk);
  std::erase_if(unrecorded_, [&](std::uint32_t chunk) {
    listed_[chunk] = !catalog_.chunks[chunk].written.empty();
    return !listed_[chunk];
  });
}

/// The newest snapshot that a record may name goes first; those before it are not needed then.
void JournalState::begin_snapshot_record(std::uint32_t chunk) {
  Catalog::Chunk& c = catalog_.chunks[chunk];
  if (c.recording != nullptr) return;
  const auto newest = std::find_if(c.written.rbegin(), c.written.rend(), [&](const Version* v) {
    return recordable(*v) && flushes_.cover(v->paths, v->tick);
  });
  if (newest == c.written.rend()) return;
  c.recording = *newest;
  std::erase(c.written, c.recording);
  catalog_.drop_written_before(chunk, c.recording->version);
  c.recording->slot = c.trusted == nullptr ? 0 : 1 - c.trusted->slot;
  recording_.push_back(chunk);
  queue_record(ObjectKind::snapshot, chunk, c.recording);
}

/// Asks for flushes of everything that could go on with one.
void JournalState::want_epoch() {
  for (const std::uint32_t chunk : recording_) {
    const Version* v = catalog_.chunks[chunk].recording;
    if (v->recorded) flushes_.want(v->record_paths, v->record_tick);
  }
  for (const std::uint32_t chunk : unrecorded_) {
    const Catalog::Chunk& c = catalog_.chunks[chunk];
    if (c.recording != nullptr) continue;
    for (const Version* v : c.written) {
      if (recordable(*v)) flushes_.want(v->paths, v->tick);
    }
  }
}

void JournalState::finish_checkpoint() {
  if (!goal_ || !durable_ || *durable_ < goal_->commit.step) return;
  const std::uint64_t from = goal_->commit.applied();
  for (std::uint32_t chunk = 0; chunk < catalog_.chunks.size(); ++chunk) {
    if (!catalog_.is_of(chunk, catalog_.chunks[chunk].trusted, from)) return;
  }
  answer_checkpoint();
}

void JournalState::answer_checkpoint() {
  auto manifest = std::make_shared<Manifest>();
  manifest->identity = layout_.identity();
  manifest->commit = goal_->commit;
  manifest->commit.ancestors.clear();
  manifest->commit.slot = kNoSlot;
  manifest->commit.paths = 0;
  for (std::uint32_t chunk = 0; chunk < catalog_.chunks.size(); ++chunk) {
    const Version* snapshot = catalog_.chunks[chunk].trusted;  // null: another shard has it
    manifest->snapshots.push_back(snapshot == nullptr ? StoredObject{chunk, goal_->commit.applied(), {}}
                                                      : StoredObject{chunk, snapshot->version, snapshot->pieces});
  }
  pin(*manifest);
  actions.push_back({.kind = Action::Kind::checkpoint, .manifest = manifest, .done = std::move(goal_->done)});
  goal_.reset();
  scan();  // snapshots of later steps need not wait any more
}

void JournalState::collect_released() {
  for (Version* version : catalog_.take_released()) {
    hurried_ = false;
    actions.push_back({.kind = Action::Kind::released, .version = version});
  }
}

}  // namespace spillway::journal
