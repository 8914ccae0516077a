// The decisions of a journal, without threads: events in, actions out.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>

#include "spillway/journal/action.h"
#include "spillway/journal/catalog.h"
#include "spillway/journal/checkpoint_goal.h"
#include "spillway/journal/commit.h"
#include "spillway/journal/commit_jobs.h"
#include "spillway/journal/flushes.h"
#include "spillway/journal/journal_spec.h"
#include "spillway/journal/manifest.h"
#include "spillway/journal/pending_records.h"
#include "spillway/journal/record_writes.h"
#include "spillway/journal/recovery.h"

namespace spillway::journal {

/// Not thread safe. Every event may append to `actions`, which are to be carried out in their order.
class JournalState {
 public:
  explicit JournalState(JournalSpec spec);
  JournalState(const JournalState&) = delete;
  JournalState& operator=(const JournalState&) = delete;

  Actions actions;

  void open_fresh(const Recovered& before);
  void open_resumed(const Recovered& recovered);
  void open_at(const Manifest& manifest, const Recovered& before);

  void snapshot_written(std::uint32_t chunk, std::uint64_t version, std::span<const Piece> pieces);
  void gradient_written(std::uint32_t gradient, std::uint64_t version, std::span<const Piece> pieces);
  void commit(const CommitRequest& request);
  void hurry();
  void checkpoint(CheckpointDone done);
  void pin(const Manifest& manifest);
  void unpin(const Manifest& manifest);
  void path_failed(std::uint32_t path, std::exception_ptr error);

  void write_ended(RecordTask* task, std::uint32_t copy, std::uint32_t path, const std::exception_ptr& error);
  void sync_ended(std::uint32_t path, const std::exception_ptr& error);
  /// The vote that was asked for has ended.
  void voted(std::int64_t minimum, const std::exception_ptr& error);
  void recycle(Version* version) { catalog_.recycle(version); }

  [[nodiscard]] const MetadataLayout& layout() const noexcept { return layout_; }
  /// True where a step counts only when every shard of the run has it.
  [[nodiscard]] bool votes() const noexcept { return spec_.world > 1; }
  [[nodiscard]] std::optional<std::uint64_t> durable() const noexcept { return durable_; }

 private:
  void begin(const Recovered& before);
  void open(CommitJob::Kind kind, Commit commit);
  void check_open() const;
  void push(CommitJob::Kind kind, Commit commit);
  [[nodiscard]] Commit compose(const CommitRequest& request) const;
  void finish_commit(const CommitJob& job);
  void record_written(RecordTask* task);
  [[nodiscard]] Recordable recordable() const;
  void scan();
  [[nodiscard]] bool urgent();
  [[nodiscard]] bool gathered();
  void finish_checkpoint();
  void pump();
  void start_syncs();
  void collect_released();
  void lose_path(std::uint32_t path, const std::exception_ptr& error);
  void fail(const std::exception_ptr& error);

  const JournalSpec spec_;
  const MetadataLayout layout_;
  PathSet usable_;  ///< paths that can be written
  Catalog catalog_;
  Flushes flushes_;
  RecordWrites writes_;
  PendingRecords pending_;
  CommitJobs jobs_;
  CheckpointGoal goal_;
  GatheredChunks gathered_;  ///< of the full commit or checkpoint under way

  std::uint32_t generation_ = 0;
  bool open_called_ = false, opened_ = false, fresh_ = false;
  std::optional<std::uint64_t> durable_;
  std::uint64_t requested_ = 0;   ///< the last step that was committed, durable or not
  std::uint64_t applied_ = 0;     ///< the last one that changed anything
  std::optional<Commit> newest_;  ///< the last commit that was asked for
  bool hurried_ = false;
  std::exception_ptr failed_;
};

}  // namespace spillway::journal
