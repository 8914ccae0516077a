// Commits under way, and the slots that hold those which replay may need.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "spillway/journal/action.h"
#include "spillway/journal/catalog.h"
#include "spillway/journal/commit.h"
#include "spillway/journal/flushes.h"
#include "spillway/journal/pending_records.h"
#include "spillway/journal/recovery.h"

namespace spillway::journal {

/// A commit that was asked for.
struct CommitJob {
  enum class Kind : std::uint8_t {
    blank,   ///< nothing is durable from here on
    resume,  ///< the first commit of a generation that goes on
    back,    ///< the first commit of a generation that goes back to a checkpoint
    full,    ///< every chunk has a snapshot of the step
    redo,    ///< snapshots and gradients lead to the step
  };
  enum class Stage : std::uint8_t { queued, waiting, flushing, recording, writing, publishing, voting, agreed };

  Kind kind = Kind::redo;
  Commit commit;
  Stage stage = Stage::queued;
  std::size_t missing = 0;  ///< gradients without record
  std::uint32_t slot = Version::kNoSlot;
  std::uint32_t open = 0;  ///< writes in flight
  PathSet paths = 0;       ///< to be flushed, or written
  Tick tick = 0;

  /// True for the first of a generation.
  [[nodiscard]] bool opens() const noexcept { return kind != Kind::full && kind != Kind::redo; }
  /// The step that this shard has when it is durable here.
  [[nodiscard]] std::int64_t vote() const {
    return kind == Kind::blank ? kNoStep : static_cast<std::int64_t>(commit.step);
  }
};

/// Takes commits one after the other through their stages: what one needs is written and flushed, then the commit
/// itself, then the shards agree. Not thread safe.
class CommitJobs {
 public:
  /// All references outlive it. `usable`: paths that can be written.
  CommitJobs(const JournalSpec& spec, const MetadataLayout& layout, const PathSet& usable, Catalog& catalog,
             Flushes& flushes, PendingRecords& pending, Actions& actions);

  /// Slots of commits that `before` has are not written over while replay may need them.
  void keep_slots(const Recovered& before);
  /// The line of generations that the next commits name goes on after `last`.
  void follow(const Commit& last) { ancestors_ = continue_line(last, catalog_.needed_line()); }
  void push(CommitJob job) { jobs_.push_back(std::move(job)); }

  [[nodiscard]] bool empty() const noexcept { return jobs_.empty(); }
  [[nodiscard]] const CommitJob& first() const { return jobs_.front(); }
  [[nodiscard]] const CommitJob& last() const { return jobs_.back(); }
  /// True where the first is of that kind.
  [[nodiscard]] bool is(CommitJob::Kind kind) const { return !jobs_.empty() && jobs_.front().kind == kind; }
  /// True while the first waits for a slot, since every slot has a commit that replay would need.
  [[nodiscard]] bool stalled() const noexcept { return stalled_; }

  /// Takes the first as far as it can go. The result is the job when its commit is durable, on every shard.
  [[nodiscard]] std::optional<CommitJob> advance();
  /// A gradient has its record.
  void note_record(std::uint32_t gradient, const Version& version);
  /// A write of the commit has ended. Whether a path has it, or may have it.
  [[nodiscard]] bool end_write(std::uint32_t path, bool written);
  /// All shards have the step.
  void agree() { jobs_.front().stage = CommitJob::Stage::agreed; }

 private:
  struct HeldCommit {
    std::uint64_t step = 0;
    std::uint32_t slot = 0;
    bool skipped = false;
  };

  void start(CommitJob& job);
  void begin_flush(CommitJob& job);
  [[nodiscard]] bool is_durable(CommitJob& job);
  [[nodiscard]] bool all_published(const CommitJob& job) const;
  [[nodiscard]] std::uint32_t free_slot();
  bool write(CommitJob& job);
  bool ask(CommitJob& job);

  const JournalSpec& spec_;
  const MetadataLayout& layout_;
  const PathSet& usable_;
  Catalog& catalog_;
  Flushes& flushes_;
  PendingRecords& pending_;
  Actions& actions_;
  std::deque<CommitJob> jobs_;
  std::vector<Ancestor> ancestors_;
  std::vector<HeldCommit> held_;                  ///< durable commits that replay may need
  std::uint32_t newest_slot_ = Version::kNoSlot;  ///< of the durable commit
  bool stalled_ = false;
  MetadataBuffer buffer_;
};

}  // namespace spillway::journal
