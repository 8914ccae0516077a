// Objects of a step on the paths, by kind and number, wherever the pool has put them last.
//
// A write takes new places. What it replaces is given back first when nothing here has to survive the run; what the
// journal of a durable run was told of is its own until it releases it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "spillway/execute/journal_objects.h"
#include "spillway/journal/manifest.h"
#include "spillway/journal/run_journal.h"
#include "spillway/plan/planner.h"
#include "spillway/storage/pool.h"
#include "spillway/storage/waiter.h"

namespace spillway::execute {

/// So often one who waits looks whether the transfers are stalled, and takes them to be so after as many looks in a
/// row: a journal may be told of something by another thread between two of them.
inline constexpr std::chrono::milliseconds kStallCheck{500};
inline constexpr int kStalledLooks = 4;

/// "weights of model.layers.0.mlp.up_proj.weight to model.norm.weight (chunk 3)": for messages. Not of activations.
[[nodiscard]] std::string name_of(const state::Layout& layout, plan::ObjectKind kind, std::size_t chunk);

/// A read or a write of an object.
struct StoreTransfer {
  storage::Direction direction = storage::Direction::read;
  plan::ObjectKind kind = plan::ObjectKind::weight;
  std::size_t subject = 0;  ///< index of plan::Object
  std::byte* memory = nullptr;
  Bytes bytes = 0;
  std::uint64_t version = 0;  ///< of a write: the step that it is of
  bool snapshot = false;      ///< of a write of weight or state: part of a snapshot; the other part is written, too
  std::uint64_t deadline = 0;
  storage::Done done = nullptr;
  void* context = nullptr;
  std::uint64_t token = 0;
  std::uint32_t* last_path = nullptr;  ///< as storage::Pool::Request::last_path
};
/// The snapshot of a chunk that is being written.
struct ChunkSnapshot {
  std::uint64_t version = 0;
  unsigned parts = 0;  ///< of it that have ended
  storage::Pool::Pair pair;
  std::uint64_t told = 0;
  bool any = false;  ///< the journal has one, of step `told`
  bool constant = false;
  std::vector<journal::Piece> pieces;
};

class Store {
 public:
  using Transfer = StoreTransfer;

  /// Room for what the plan does not keep in memory, and with `journal` (may be null) for what makes it durable. All
  /// references must outlive it.
  Store(const plan::Plan& plan, const plan::Description& description, const state::Layout& layout, storage::Pool& pool,
        journal::RunJournal* journal);

  /// Starts a transfer as storage::Pool::start does. A subject has one write at a time and no read beside it; what was
  /// never written cannot be read.
  void start(const Transfer& transfer);
  /// Starts a transfer and waits for it, while no other one is under way; throws its error.
  void run(const Transfer& transfer);
  /// Waits for a transfer that was started, while all others wait for nothing but a place; throws nothing.
  void wait(storage::Waiter& waiter);
  /// Writes the weight or the state of a chunk, as step `version` left it, and waits for it.
  void write(plan::ObjectKind kind, std::size_t chunk, std::span<const std::byte> memory, std::uint64_t version);

  /// The run has failed, elsewhere than in a transfer: what is not written yet will not be, and nobody waits for it.
  void give_up(const std::exception_ptr& error);

  /// The number of transfers under way when each of them is a write that waits for a place, none moves, and the journal
  /// waits for nothing by which it would release some: unless a later write gives places back, they wait for ever.
  /// Otherwise 0.
  [[nodiscard]] std::size_t stalled() const;
  /// Ends the wait of transfers for a place with the pool's Error. Runs on the calling thread, without a lock that a
  /// transfer's `done` takes.
  void refuse_waiting() { pool_.refuse_waiting(); }

  // Durable steps:

  /// The gradients of step `version` are going to be written.
  void expect_gradients(std::uint64_t version);
  /// Snapshots of step `version` are going to be written. Nothing that they replace is free before the step is durable,
  /// and it is not before all its gradients are written: those that have not begun keep their places.
  void reserve_gradients(std::uint64_t version);

  // Durable runs, between steps:

  /// Both parts of the chunk, as they were written last, are its snapshot of step `version`; tells the journal unless
  /// it has one of that step or later. A frozen chunk has one snapshot, of whatever step.
  void publish(std::size_t chunk, std::uint64_t version);
  [[nodiscard]] bool published(std::size_t chunk, std::uint64_t version) const;
  /// The snapshot of a chunk that an earlier process has left.
  void adopt(const journal::StoredObject& snapshot);

  /// Between steps: memory has the object. Without a journal its places are free.
  void forget(plan::ObjectKind kind, std::size_t subject);

  // Runs without a journal, after their last step:

  /// Gradients and activations are given up, and their places free.
  void drop_transient();
  [[nodiscard]] bool written(plan::ObjectKind kind, std::size_t chunk) const;
  /// Bytes of places that writing it would take.
  [[nodiscard]] Bytes place_bytes(plan::ObjectKind kind, std::size_t chunk) const;
  /// Weight and state of a chunk as they were written last. `paths`: the pool's.
  [[nodiscard]] journal::StoredObject stored(std::size_t chunk, std::uint64_t version,
                                             std::span<storage::Path* const> paths) const;

 private:
  struct Object {
    Store* store = nullptr;
    plan::ObjectKind kind = plan::ObjectKind::weight;
    std::size_t subject = 0;
    std::vector<storage::Place> places;
    bool written = false;
    bool owned = false;  ///< by the journal, which releases its places
    std::string name;    ///< for errors
    Transfer write;      ///< the last one, or the one that is under way
  };

  void add(plan::ObjectKind kind, std::size_t subject, Bytes bytes, std::string name);
  [[nodiscard]] Object& object(plan::ObjectKind kind, std::size_t subject);
  [[nodiscard]] const Object& object(plan::ObjectKind kind, std::size_t subject) const;
  [[nodiscard]] storage::Pool::Request request(const Transfer& transfer);
  [[nodiscard]] storage::Pool::Group& gradients_of(std::uint64_t version) { return gradient_groups_[version % 2]; }
  void drop(Object& object);
  void begin_write(Object& object, const Transfer& transfer);
  void pair(const Object& object, storage::Pool::Request& request);
  static void ended(void* context, std::uint64_t token, const std::exception_ptr& error) noexcept;
  void note(Object& object);
  void tell_snapshot(std::size_t chunk, std::uint64_t version);
  static void append(const Object& object, std::uint32_t part, std::span<storage::Path* const> paths,
                     std::vector<journal::Piece>& pieces);

  storage::Pool& pool_;
  journal::RunJournal* const journal_;
  const GradientIds gradients_;
  std::array<std::deque<Object>, plan::kObjects.size()> objects_;  ///< by kind, by subject
  const bool redo_;                                                ///< the journal keeps gradients
  std::uint64_t gradient_places_ = 0;                              ///< that those of a step take
  std::array<storage::Pool::Group, 2> gradient_groups_;

  mutable std::mutex mutex_;              ///< guards the snapshots but for what was told of them
  std::vector<ChunkSnapshot> snapshots_;  ///< by chunk
};

}  // namespace spillway::execute
