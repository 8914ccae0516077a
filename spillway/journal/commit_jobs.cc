#include "spillway/journal/commit_jobs.h"

#include <algorithm>

namespace spillway::journal {

using Kind = CommitJob::Kind;
using Stage = CommitJob::Stage;

CommitJobs::CommitJobs(const JournalSpec& spec, const MetadataLayout& layout, const PathSet& usable, Catalog& catalog,
                       Flushes& flushes, PendingRecords& pending, Actions& actions)
    : spec_(spec),
      layout_(layout),
      usable_(usable),
      catalog_(catalog),
      flushes_(flushes),
      pending_(pending),
      actions_(actions),
      buffer_(layout.commit_bytes()) {}

void CommitJobs::keep_slots(const Recovered& before) {
  newest_slot_ = before.newest_slot;
  for (const RecoveredCommit& c : before.commits) held_.push_back({c.commit.step, c.slot, false});
}

std::optional<CommitJob> CommitJobs::advance() {
  if (jobs_.empty() || !is_durable(jobs_.front())) return std::nullopt;
  CommitJob job = std::move(jobs_.front());
  jobs_.pop_front();
  newest_slot_ = job.slot;
  if (job.kind == Kind::blank || job.kind == Kind::back) held_.clear();
  if (job.kind != Kind::blank) held_.push_back({job.commit.step, job.slot, job.commit.skipped});
  return job;
}

void CommitJobs::start(CommitJob& job) {
  switch (job.kind) {
    case Kind::blank:
      job.stage = Stage::writing;
      break;
    case Kind::resume:
    case Kind::back:
      flushes_.want_unseen();
      begin_flush(job);
      break;
    case Kind::full:
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

/// Asks for flushes of everything that was written up to now.
void CommitJobs::begin_flush(CommitJob& job) {
  job.stage = Stage::flushing;
  job.paths = flushes_.dirty();
  job.tick = flushes_.mark();
  flushes_.want(job.paths, job.tick);
}

bool CommitJobs::is_durable(CommitJob& job) {
  if (job.stage == Stage::queued) start(job);
  if (job.stage == Stage::waiting) {
    if (job.missing != 0) return false;
    begin_flush(job);
  }
  if (job.stage == Stage::flushing) {
    if (!flushes_.cover(job.paths, job.tick)) return false;
    if (job.kind == Kind::back) pending_.begin_all();
    job.stage = job.kind == Kind::back ? Stage::recording : Stage::writing;
  }
  if (job.stage == Stage::recording) {
    if (!all_published(job)) return false;
    job.stage = Stage::writing;
  }
  if (job.stage == Stage::writing) {
    if (job.slot == Version::kNoSlot && !write(job)) return false;
    if (job.open != 0) return false;
    job.stage = Stage::publishing;
    job.tick = flushes_.written(job.paths);
    flushes_.want_all();
  }
  if (!flushes_.cover(job.paths, job.tick)) return false;
  return spec_.world == 1 || ask(job);
}

/// True once every chunk has a durable snapshot and record of the step that a full commit is of.
bool CommitJobs::all_published(const CommitJob& job) const {
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

std::uint32_t CommitJobs::free_slot() {
  const std::uint64_t oldest = catalog_.oldest_trusted();
  std::erase_if(held_, [&](const HeldCommit& c) { return c.skipped || c.step <= oldest; });
  for (std::uint32_t slot = 0; slot < layout_.commit_slots(); ++slot) {
    const bool held = std::any_of(held_.begin(), held_.end(), [&](const HeldCommit& c) { return c.slot == slot; });
    if (!held && slot != newest_slot_) return slot;
  }
  return Version::kNoSlot;
}

/// Starts writing the commit to every path; false when every slot holds a commit that replay would need.
bool CommitJobs::write(CommitJob& job) {
  job.slot = free_slot();
  stalled_ = job.slot == Version::kNoSlot;
  if (stalled_) return false;
  if (job.kind != Kind::blank && job.kind != Kind::back) {
    prune(ancestors_, catalog_.needed_line());
    job.commit.ancestors = ancestors_;
  }
  job.commit.slot = job.slot;
  job.commit.paths = spec_.paths <= kMostNamedPaths ? usable_ : 0;
  const std::span<std::byte> out = buffer_.bytes().first(round_up(encoded_bytes(job.commit), kMetadataAlignment));
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
      actions_.push_back(std::move(action));
      flushes_.hold(path);
      ++job.open;
    }
  }
  return true;
}

void CommitJobs::note_record(std::uint32_t gradient, const Version& version) {
  if (jobs_.empty() || jobs_.front().stage != Stage::waiting) return;
  CommitJob& job = jobs_.front();
  const bool counts = version.version == job.commit.step && version.live;
  if (counts && job.commit.used(gradient)) --job.missing;
}

bool CommitJobs::end_write(std::uint32_t path, bool written) {
  CommitJob& job = jobs_.front();
  flushes_.let_go(path);
  --job.open;
  if (written) job.paths |= PathSet{1} << path;
  return job.open != 0 || job.paths != 0;
}

/// Asks the other shards for their votes, once the commit is durable here; whether all have it.
bool CommitJobs::ask(CommitJob& job) {
  if (job.stage == Stage::publishing) {
    job.stage = Stage::voting;
    actions_.push_back({.kind = Action::Kind::vote, .vote = job.vote()});
  }
  return job.stage == Stage::agreed;
}

}  // namespace spillway::journal
