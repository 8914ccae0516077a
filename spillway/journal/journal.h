// The journal of a run: what was written where, which step is durable, which places are free again.
//
// The journal owns no thread and no file. Events come in from any thread; what follows from them is asked of the Media
// and told to the Listener, in order, by the thread whose event it was (or by another one that is already at it), and
// without a lock held. The order of writes and flushes is that of docs/decisions/0001-durable-storage.md.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <thread>

#include "spillway/base/mutex.h"
#include "spillway/journal/journal_state.h"
#include "spillway/journal/media.h"
#include "spillway/journal/vote.h"

namespace spillway::journal {

/// What a journal tells. Called without a lock, one call at a time; must not throw; may call the journal.
class JournalListener {
 public:
  virtual ~JournalListener() = default;
  /// The journal's first commit is durable, and so is everything that was recovered. Before that no piece is to be
  /// written: what a killed process had written is visible, but a cut may take it back and make older places count.
  virtual void opened() = 0;
  /// The step is durable, on every shard, and so are those before it.
  virtual void durable(std::uint64_t step) = 0;
  /// Nothing needs what is at these places; they may be written.
  virtual void released(std::span<const Piece> pieces) = 0;
  /// The path takes no more metadata. What lies there is still read and flushed.
  virtual void path_failed(std::uint32_t path, std::exception_ptr error) = 0;
  /// Nothing will be durable or released from now on: a flush failed, or no path can be written. The last durable step
  /// stands.
  virtual void failed(std::exception_ptr error) = 0;
};

/// Wrong use (an event before the opening, an older version, an unannounced piece) throws Error(internal) and changes
/// nothing.
class Journal {
 public:
  /// All references outlive the journal. `votes`: null in a world of one, and only there.
  Journal(JournalSpec spec, Media& media, JournalListener& listener, VotePort* votes = nullptr);
  /// Stops, then waits for what the Media was asked. A vote under way is cancelled.
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Opening: pin() the checkpoints that exist, then exactly one of these, once.

  /// Nothing of what was there before counts. The first commit() waits for a snapshot of its step of every chunk.
  void open_fresh(const Recovered& before);
  /// Goes on after the durable step. The caller replays; snapshots of the chunks that were behind may be written (again
  /// with version = the durable step).
  void open_resumed(const Recovered& recovered);
  /// Goes back to a checkpoint, which stays pinned. Until opened() a cut brings back what was before.
  void open_at(const Manifest& manifest, const Recovered& before);

  // Events, from opened() on.

  /// Every piece of the snapshot of a chunk was written (completed, not flushed): the result of step `version`.
  /// Versions of a chunk only rise. The places are the journal's until they are released.
  void snapshot_written(std::uint32_t chunk, std::uint64_t version, std::span<const Piece> pieces);
  /// Every piece of the gradient of a step was written; its versions only rise, too. Only with Durability::step.
  void gradient_written(std::uint32_t gradient, std::uint64_t version, std::span<const Piece> pieces);
  /// The step has ended; it becomes durable when its gradients are (Durability::step), or with the next checkpoint.
  /// May come before the gradients it names.
  void commit(const CommitRequest& request);
  /// Free places are getting few: do what it takes to release some, until some are released.
  void hurry();
  /// Makes the last committed step durable in snapshots alone, which for resident chunks the caller has written, and
  /// gives the manifest, pinned. One at a time. When the manifest's file cannot be kept, unpin it.
  void checkpoint(CheckpointDone done);
  /// A checkpoint's places stay until it is given up: after its file is gone for good.
  void pin(const Manifest& manifest);
  void unpin(const Manifest& manifest);
  /// The path is not to be written any more.
  void path_failed(std::uint32_t path, std::exception_ptr error);

  /// From now on the Media is asked nothing and the Listener told nothing; waits for a listener that is being told,
  /// unless it is the caller.
  void stop();

  [[nodiscard]] const MetadataLayout& layout() const noexcept { return layout_; }
  /// Nothing that was asked of the Media is under way, and the Listener is not being told: nothing will be durable or
  /// released before the next event.
  [[nodiscard]] bool quiet() const;
  /// The last durable step of this journal's line; none before opened().
  [[nodiscard]] std::optional<std::uint64_t> durable() const;

 private:
  template <class... Parameters, class... Arguments>
  void on(void (JournalState::*event)(Parameters...), Arguments&&... arguments);
  void carry_out() SPILLWAY_REQUIRES(mutex_);
  template <class... Parameters, class... Arguments>
  void ended(void (JournalState::*event)(Parameters...), const Arguments&... arguments) noexcept;
  void break_off(const std::exception_ptr& error) noexcept SPILLWAY_REQUIRES(mutex_);
  void perform(const Action& action);
  void start_write(const Action& action);
  void start_sync(std::uint32_t path);
  void start_vote(std::int64_t step);

  Media& media_;
  JournalListener& listener_;
  VotePort* const votes_;

  mutable Mutex mutex_;
  Condition idle_;
  JournalState state_ SPILLWAY_GUARDED_BY(mutex_);
  const MetadataLayout& layout_;                               ///< of the state, which never changes it
  std::uint64_t outstanding_ SPILLWAY_GUARDED_BY(mutex_) = 0;  ///< Dones that have not returned
  /// The thread that carries out actions just now, outside of the lock; none: nobody does.
  std::thread::id carrier_ SPILLWAY_GUARDED_BY(mutex_);
  /// The thread that tells the listener that the journal has failed; none: nobody does.
  std::thread::id teller_ SPILLWAY_GUARDED_BY(mutex_);
  bool stopped_ SPILLWAY_GUARDED_BY(mutex_) = false;
};

}  // namespace spillway::journal
