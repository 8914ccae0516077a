// The decisions of a journal, without threads: events in, actions out.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "spillway/journal/catalog.h"
#include "spillway/journal/commit.h"
#include "spillway/journal/flushes.h"
#include "spillway/journal/journal_spec.h"
#include "spillway/journal/manifest.h"
#include "spillway/journal/recovery.h"
#include "spillway/journal/vote.h"

namespace spillway::journal {

/// Memory of records and commits, aligned for direct transfers.
class MetadataBuffer {
 public:
  explicit MetadataBuffer(Bytes bytes);
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  Bytes bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

/// What the journal's caller says of the end of a step.
struct CommitRequest {
  std::uint64_t step = 0;  ///< larger than that of the request before
  /// The last step before it that changed something, where that is later than all the journal was told of.
  std::uint64_t previous = 0;
  bool skipped = false;                    ///< the step changed nothing; `gradients` do not count
  std::span<const std::byte> update = {};  ///< at least kUpdateBytes; none: zeros
  std::span<const std::byte> payload = {};
  std::span<const std::uint32_t> gradients = {};  ///< those that the update uses
};

/// The manifest, or why there is none.
using CheckpointDone = std::function<void(const Manifest&, std::exception_ptr)>;

/// A record on its way to its slots, one per copy.
struct RecordTask {
  ObjectKind kind = ObjectKind::snapshot;
  std::uint32_t object = 0;
  Version* version = nullptr;
  std::array<std::uint32_t, kCopies> paths{};
  std::unique_ptr<MetadataBuffer> buffer;
  std::uint32_t open = 0;  ///< copies not written yet
  PathSet done = 0;
};

struct Action {
  enum class Kind : std::uint8_t { write, sync, vote, opened, durable, released, checkpoint, path_failed, failed };
  Kind kind = Kind::sync;
  std::uint32_t path = 0;
  Bytes offset = 0;                       ///< of a write
  std::span<const std::byte> bytes = {};  ///< of a write
  RecordTask* task = nullptr;             ///< whose write it is; null: the commit's
  std::uint32_t copy = 0;
  std::uint64_t step = 0;
  std::int64_t vote = kNoStep;
  Version* version = nullptr;  ///< released; for recycle()
  std::exception_ptr error = nullptr;
  std::shared_ptr<Manifest> manifest = nullptr;
  CheckpointDone done = nullptr;
};

/// Not thread safe. Every event may append to `actions`, which are to be carried out in their order.
class JournalState {
 public:
  explicit JournalState(JournalSpec spec);

  std::deque<Action> actions;

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
  /// Whether a step counts only when every shard of the run has it.
  [[nodiscard]] bool votes() const noexcept { return spec_.world > 1; }
  [[nodiscard]] std::optional<std::uint64_t> durable() const noexcept { return durable_; }

 private:
  enum class Kind : std::uint8_t {
    blank,   ///< nothing is durable from here on
    resume,  ///< the first commit of a generation that goes on
    back,    ///< the first commit of a generation that goes back to a checkpoint
    full,    ///< every chunk has a snapshot of the step
    redo,    ///< snapshots and gradients lead to the step
  };
  enum class Stage : std::uint8_t { waiting, flushing, recording, writing, publishing, voting, agreed };
  /// A commit under way or waiting for those before it.
  struct Job {
    Kind kind = Kind::redo;
    Stage stage = Stage::waiting;
    Commit commit;
    std::size_t missing = 0;  ///< gradients without record
    std::uint32_t slot = Version::kNoSlot;
    std::uint32_t open = 0;  ///< writes in flight
    PathSet paths = 0;       ///< to be flushed, or written
    Tick tick = 0;
    /// The step that this shard has when it is durable here.
    [[nodiscard]] std::int64_t vote() const {
      return kind == Kind::blank ? kNoStep : static_cast<std::int64_t>(commit.step);
    }
  };
  /// A checkpoint that was asked for.
  struct Goal {
    Commit commit;
    CheckpointDone done;
  };
  struct HeldCommit {
    std::uint64_t step = 0;
    std::uint32_t slot = 0;
    bool skipped = false;
  };

  // Snapshots and gradients: journal_state.cc
  void adopt(const Recovered& recovered);
  void adopt_snapshot(const RecoveredObject& snapshot);
  void take_back(std::uint32_t chunk, const StoredObject& snapshot);
  void begin(const Recovered& before);
  void check_pieces(ObjectKind kind, std::uint32_t object, std::span<const Piece> pieces) const;
  void check_manifest(const Manifest& manifest) const;
  void check_open() const;
  void check_newer(std::uint32_t chunk, std::uint64_t version) const;
  void scan();
  void settle_snapshots();
  void place_gradients();
  void begin_snapshot_records();
  void begin_snapshot_record(std::uint32_t chunk);
  void want_epoch();
  [[nodiscard]] bool urgent();
  [[nodiscard]] bool gathered();
  [[nodiscard]] bool recordable(const Version& version) const;
  void finish_checkpoint();
  void answer_checkpoint();
  void collect_released();
  void pump();

  // Records: journal_state_records.cc
  void queue_record(ObjectKind kind, std::uint32_t object, Version* version);
  void issue_records();
  void issue_copy(RecordTask* task, std::uint32_t copy);
  void record_written(RecordTask* task);
  void lose_path(std::uint32_t path, const std::exception_ptr& error);
  [[nodiscard]] std::uint32_t choose_path(ObjectKind kind, std::uint32_t object, std::uint32_t copy) const;
  void hold(const RecordTask& task, std::uint32_t copy, bool held);
  void start_syncs();
  void fail(const std::exception_ptr& error);

  // Commits: journal_state_commits.cc
  void push(Job job);
  void start_front();
  void advance_commit();
  bool flush_stage(Job& job);
  [[nodiscard]] bool all_published(const Job& job) const;
  void begin_back_records();
  bool write_commit(Job& job);
  [[nodiscard]] std::uint32_t free_commit_slot();
  void commit_written(std::uint32_t path, const std::exception_ptr& error);
  bool agree(Job& job);
  void finish_commit();
  void drop_unused_gradients(const Commit& commit);
  [[nodiscard]] Commit compose(const CommitRequest& request) const;

  const JournalSpec spec_;
  const MetadataLayout layout_;
  Catalog catalog_;
  Flushes flushes_;
  PathSet usable_;  ///< paths that can be written

  std::uint32_t generation_ = 0;
  std::vector<Ancestor> ancestors_;
  bool open_called_ = false, opened_ = false, fresh_ = false;
  std::optional<std::uint64_t> durable_;
  std::uint64_t requested_ = 0;   ///< the last step that was committed, durable or not
  std::uint64_t applied_ = 0;     ///< the last one that changed anything
  std::optional<Commit> newest_;  ///< the last commit that was asked for

  std::deque<Job> jobs_;
  std::optional<Goal> goal_;
  std::vector<HeldCommit> held_;                  ///< durable commits that replay may need
  std::uint32_t newest_slot_ = Version::kNoSlot;  ///< of the durable commit
  bool stalled_ = false;                          ///< a commit waits for a slot
  bool hurried_ = false;
  std::size_t gathered_ = 0;  ///< chunks known to have a snapshot for the full commit or checkpoint under way

  std::vector<std::uint32_t> unrecorded_;                     ///< chunks with written snapshots
  std::vector<bool> listed_;                                  ///< per chunk: it is in unrecorded_
  std::vector<std::uint32_t> recording_;                      ///< chunks with a snapshot on its way
  std::vector<std::pair<std::uint32_t, Version*>> slotless_;  ///< gradients that wait for a slot

  std::deque<RecordTask*> queue_;
  std::vector<std::unique_ptr<RecordTask>> tasks_;
  std::vector<RecordTask*> idle_tasks_;
  std::vector<std::unique_ptr<MetadataBuffer>> idle_buffers_;
  std::uint32_t records_in_flight_ = 0;
  MetadataBuffer commit_buffer_;
  std::exception_ptr failed_;
};

}  // namespace spillway::journal
