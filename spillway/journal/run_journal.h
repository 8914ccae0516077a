// The journal of a run, joined to the paths and the pool that it is about.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "spillway/base/mutex.h"
#include "spillway/journal/journal.h"
#include "spillway/journal/path_media.h"
#include "spillway/journal/recovery.h"
#include "spillway/storage/pool.h"

namespace spillway::journal {

/// Thread safe once it is open. An error that ended the journal is thrown by every call that needs it.
class RunJournal : private JournalListener {
 public:
  /// One of the three beginnings that Journal knows.
  struct Start {
    const Recovered* before = nullptr;
    const Manifest* back = nullptr;  ///< the checkpoint to go back to
    bool resume = false;             ///< go on from `before`
    std::span<const Manifest> pinned;
  };

  /// The paths outlive it. When fewer bytes than `low_water` are free, or can be written until the first path is
  /// full (Pool::free_in_shares), places are won back without waiting for a commit.
  /// `votes` as Journal has it.
  RunJournal(JournalSpec spec, std::vector<storage::Path*> paths, Bytes low_water, VotePort* votes = nullptr);
  ~RunJournal() override;
  RunJournal(const RunJournal&) = delete;
  RunJournal& operator=(const RunJournal&) = delete;

  [[nodiscard]] Media& media() noexcept { return media_; }
  [[nodiscard]] const JournalSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] bool keeps_gradients() const noexcept { return spec_.durability == Durability::step; }
  /// The options that the pool is to be made with; attach() it then.
  [[nodiscard]] storage::PoolOptions pool_options();
  void attach(storage::Pool& pool) noexcept { pool_ = &pool; }
  /// Pins, opens, and waits until nothing written before can come back, on any shard. Asks now and then whether it is
  /// to be left (base/interrupt.h).
  void open(const Start& start);

  /// Those that pieces lie on (piece_of()).
  [[nodiscard]] std::span<storage::Path* const> paths() const noexcept { return paths_; }

  void snapshot_written(std::size_t chunk, std::uint64_t version, std::span<const Piece> pieces);
  void gradient_written(std::uint32_t gradient, std::uint64_t version, std::span<const Piece> pieces);
  void commit(const CommitRequest& request);
  /// Waits until the step is durable, on every shard.
  void wait_durable(std::uint64_t step);
  /// Makes a checkpoint, which is pinned. Snapshots of the last committed step must have been written, of every chunk.
  [[nodiscard]] Manifest checkpoint();
  void unpin(const Manifest& manifest);
  /// As Journal::quiet().
  [[nodiscard]] bool quiet() const { return journal_.quiet(); }
  /// What the next commit needs could not be written: every wait ends with this error.
  void give_up(std::exception_ptr error);
  /// From now on the paths are asked nothing and the pool is told nothing.
  void stop();
  [[nodiscard]] std::uint64_t identity() const noexcept { return journal_.layout().identity(); }

 private:
  void opened() override;
  void durable(std::uint64_t step) override;
  void released(std::span<const Piece> pieces) override;
  void path_failed(std::uint32_t path, std::exception_ptr error) override;
  void failed(std::exception_ptr error) override;
  void throw_if_failed() const SPILLWAY_REQUIRES(mutex_);
  /// Counts the pieces of a snapshot.
  [[nodiscard]] bool is_short_of_places(std::size_t written_pieces);
  void wait_opened();
  /// Waits until something has changed.
  void wait(MutexLock& lock) SPILLWAY_REQUIRES(mutex_);

  const JournalSpec spec_;
  const Bytes low_water_;
  std::vector<storage::Path*> paths_;
  storage::Pool* pool_ = nullptr;
  PathMedia media_;

  std::vector<storage::Place> places_;  ///< of one release; only its one caller uses it

  Mutex mutex_;
  Condition changed_;
  bool opened_ SPILLWAY_GUARDED_BY(mutex_) = false;
  std::atomic<std::uint32_t> pieces_since_hurry_ = 0;  ///< of snapshots
  std::optional<std::uint64_t> durable_ SPILLWAY_GUARDED_BY(mutex_);
  std::exception_ptr failure_ SPILLWAY_GUARDED_BY(mutex_);

  Journal journal_;  ///< last: calls the above until it is gone
};

/// Describes a piece as it was written just now on one of these paths.
[[nodiscard]] Piece piece_of(std::span<storage::Path* const> paths, storage::Place place, Bytes bytes,
                             std::uint32_t part);

/// Tells the path what a read of this piece will be verified against.
void expect(storage::Path& path, const Piece& piece);

}  // namespace spillway::journal
