#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/journal/journal_state.h"

namespace spillway::journal {

Commit JournalState::compose(const CommitRequest& request) const {
  Commit commit;
  commit.generation = generation_;
  commit.step = request.step;
  commit.previous = applied_;
  commit.skipped = request.skipped;
  commit.rank = spec_.rank;
  commit.world = spec_.world;
  commit.line = spec_.line;
  if (!request.update.empty()) commit.update.assign(request.update.begin(), request.update.end());
  commit.payload.assign(request.payload.begin(), request.payload.end());
  return commit;
}

void JournalState::commit(const CommitRequest& request) {
  check_open();
  if (newest_ && request.step <= requested_) {
    throw Error(ErrorCode::internal, text("step ", request.step, " is committed after step ", requested_));
  }
  if (request.payload.size() > spec_.payload) {
    throw Error(ErrorCode::internal,
                text("a commit carries ", request.payload.size(), " bytes; this journal's hold ", spec_.payload));
  }
  for (const std::uint32_t gradient : request.gradients) {
    if (gradient < spec_.gradients.size()) continue;
    throw Error(ErrorCode::internal, text("step ", request.step, " used gradient ", gradient, "; ",
                                          spec_.gradients.size(), " were announced"));
  }
  if (request.previous >= request.step && request.step > 0) {
    throw Error(ErrorCode::internal, text("step ", request.step, " is committed after step ", request.previous));
  }
  if (failed_) return;
  applied_ = std::max(applied_, request.previous);
  Job job;
  job.commit = compose(request);
  const bool full = fresh_ || spec_.durability == Durability::checkpoint;
  job.kind = full ? Kind::full : Kind::redo;
  job.commit.complete = full;
  if (!full && !request.skipped) {
    for (const std::uint32_t gradient : request.gradients) job.commit.use(gradient);
  }
  requested_ = request.step;
  if (!request.skipped) applied_ = request.step;
  newest_ = job.commit;
  const bool first = fresh_;
  fresh_ = false;
  if (spec_.durability == Durability::step || first) push(std::move(job));
  scan();
  pump();
}

void JournalState::push(Job job) {
  jobs_.push_back(std::move(job));
  if (jobs_.size() == 1) start_front();
}

void JournalState::start_front() {
  Job& job = jobs_.front();
  switch (job.kind) {
    case Kind::blank:
      job.stage = Stage::writing;
      break;
    case Kind::resume:
    case Kind::back:
      flushes_.want_unseen();
      flush_stage(job);
      break;
    case Kind::full:
      gathered_ = 0;
      job.stage = Stage::recording;
      break;
    case Kind::redo:
      job.stage = Stage::waiting;
      for (std::uint32_t g = 0; g < spec_.gradients.size(); ++g) {
        const auto& held = catalog_.gradients[g].held;
        const bool there = std::any_of(held.begin(), held.end(),
                                       [&](const Version* v) { return v->version == job.commit.step && v->recorded; });
        if (job.commit.used(g) && !there) ++job.missing;
      }
      break;
  }
}

/// Asks for flushes of everything that was written up to now; whether none is needed.
bool JournalState::flush_stage(Job& job) {
  job.stage = Stage::flushing;
  job.paths = flushes_.dirty();
  job.tick = flushes_.mark();
  flushes_.want(job.paths, job.tick);
  return flushes_.cover(job.paths, job.tick);
}

void JournalState::advance_commit() {
  while (!jobs_.empty() && !failed_) {
    Job& job = jobs_.front();
    if (job.stage == Stage::waiting) {
      if (job.missing != 0) return;
      flush_stage(job);
    }
    if (job.stage == Stage::flushing) {
      if (!flushes_.cover(job.paths, job.tick)) return;
      if (job.kind == Kind::back) begin_back_records();
      job.stage = job.kind == Kind::back ? Stage::recording : Stage::writing;
    }
    if (job.stage == Stage::recording) {
      if (!all_published(job)) return;
      job.stage = Stage::writing;
    }
    if (job.stage == Stage::writing) {
      if (job.slot == Version::kNoSlot && !write_commit(job)) return;
      if (job.open != 0) return;
      job.stage = Stage::publishing;
      job.tick = flushes_.written(job.paths);
      flushes_.want_all();
    }
    if (!flushes_.cover(job.paths, job.tick)) return;
    if (votes() && !agree(job)) return;
    finish_commit();
  }
}

/// Whether every chunk has a durable snapshot and record of the step that a full commit is of.
bool JournalState::all_published(const Job& job) const {
  const std::uint64_t from = job.commit.applied();
  for (std::uint32_t chunk = 0; chunk < catalog_.chunks.size(); ++chunk) {
    if (spec_.chunks[chunk].elsewhere) continue;
    const Version* v = catalog_.chunks[chunk].recording;
    const bool published =
        v != nullptr ? catalog_.is_of(chunk, v, from) && v->recorded && flushes_.cover(v->record_paths, v->record_tick)
                     : job.kind == Kind::full && catalog_.is_of(chunk, catalog_.chunks[chunk].trusted, from);
    if (!published) return false;
  }
  return true;
}

void JournalState::begin_back_records() {
  for (std::uint32_t chunk = 0; chunk < catalog_.chunks.size(); ++chunk) {
    if (spec_.chunks[chunk].elsewhere) continue;
    recording_.push_back(chunk);
    queue_record(ObjectKind::snapshot, chunk, catalog_.chunks[chunk].recording);
  }
}

std::uint32_t JournalState::free_commit_slot() {
  const std::uint64_t oldest = catalog_.oldest_trusted();
  std::erase_if(held_, [&](const HeldCommit& c) { return c.skipped || c.step <= oldest; });
  for (std::uint32_t slot = 0; slot < layout_.commit_slots(); ++slot) {
    const bool held = std::any_of(held_.begin(), held_.end(), [&](const HeldCommit& c) { return c.slot == slot; });
    if (!held && slot != newest_slot_) return slot;
  }
  return Version::kNoSlot;
}

/// Starts writing the commit to every path; false when every slot holds a commit that replay would need.
bool JournalState::write_commit(Job& job) {
  job.slot = free_commit_slot();
  stalled_ = job.slot == Version::kNoSlot;
  if (stalled_) {
    want_epoch();
    return false;
  }
  if (job.kind != Kind::blank && job.kind != Kind::back) {
    prune(ancestors_, catalog_.needed_line());
    job.commit.ancestors = ancestors_;
  }
  job.commit.slot = job.slot;
  job.commit.paths = spec_.paths <= kMostNamedPaths ? usable_ : 0;
  const std::span<std::byte> out =
      commit_buffer_.bytes().first(round_up(encoded_bytes(job.commit), kMetadataAlignment));
  encode(job.commit, layout_.identity(), out);
  job.paths = 0;
  for (std::uint32_t path = 0; path < spec_.paths; ++path) {
    if ((usable_ >> path & 1) == 0) continue;
    for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
      Action action;
      action.kind = Action::Kind::write;
      action.path = path;
      action.offset = layout_.commit(copy, job.slot);
      action.bytes = out;
      actions.push_back(std::move(action));
      flushes_.hold(path);
      ++job.open;
    }
  }
  return true;
}

void JournalState::commit_written(std::uint32_t path, const std::exception_ptr& error) {
  Job& job = jobs_.front();
  flushes_.let_go(path);
  --job.open;
  if (!error) job.paths |= PathSet{1} << path;
  if (job.open == 0 && job.paths == 0) fail(error);
}

/// Votes for the commit, once it is durable here; whether all shards have answered that it is there.
bool JournalState::agree(Job& job) {
  if (job.stage == Stage::publishing) {
    job.stage = Stage::voting;
    actions.push_back({.kind = Action::Kind::vote, .vote = job.vote()});
  }
  return job.stage == Stage::agreed;
}

void JournalState::voted(std::int64_t minimum, const std::exception_ptr& error) {
  if (failed_) return;
  if (error) return fail(error);
  Job& job = jobs_.front();
  if (minimum < job.vote()) {
    const auto words = text("step ", job.commit.step, " is durable on shard ", spec_.rank, " of ", spec_.world,
                            ", but another shard has only step ", minimum, "; resume the run on all of them");
    return fail(std::make_exception_ptr(Error(ErrorCode::io, words)));
  }
  job.stage = Stage::agreed;
  pump();
}

/// A gradient of the step that its update did not use is not needed for replay.
void JournalState::drop_unused_gradients(const Commit& commit) {
  for (std::uint32_t g = 0; g < spec_.gradients.size(); ++g) {
    if (!commit.used(g)) catalog_.drop_gradient(g, commit.step);
  }
}

void JournalState::finish_commit() {
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  newest_slot_ = job.slot;
  gathered_ = 0;
  const bool opens = job.kind == Kind::blank || job.kind == Kind::resume || job.kind == Kind::back;
  if (job.kind == Kind::blank || job.kind == Kind::back) held_.clear();
  if (job.kind == Kind::back) catalog_.drop_gradients_but_of(generation_);
  if (opens) {
    opened_ = true;
    actions.push_back({.kind = Action::Kind::opened});
  }
  if (job.kind != Kind::blank) {
    held_.push_back({job.commit.step, job.slot, job.commit.skipped});
    durable_ = job.commit.step;
    actions.push_back({.kind = Action::Kind::durable, .step = job.commit.step});
  }
  if (job.kind == Kind::redo) drop_unused_gradients(job.commit);
  if (!jobs_.empty()) start_front();
  scan();
}

}  // namespace spillway::journal
