// The journal of a run, joined to the paths and the pool that it is about.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "spillway/journal/journal.h"
#include "spillway/journal/path_media.h"
#include "spillway/journal/recovery.h"
#include "spillway/plan/description.h"
#include "spillway/state/layout.h"
#include "spillway/storage/pool.h"

namespace spillway::execute {

/// The embedding's table; null: none.
[[nodiscard]] const state::Block* table_of(const state::Layout& layout);

/// The journal's numbers for the gradients of a run: those of dense chunks in their order, then parts of the rows.
class GradientIds {
 public:
  GradientIds(const plan::Description& description, const state::Layout& layout);

  [[nodiscard]] std::uint32_t of_chunk(std::size_t chunk) const { return of_chunk_.at(chunk); }
  [[nodiscard]] std::uint32_t of_rows(std::size_t part) const { return first_rows_ + static_cast<std::uint32_t>(part); }
  [[nodiscard]] std::size_t rows_parts() const noexcept { return rows_parts_; }  ///< of the largest step
  [[nodiscard]] std::uint32_t count() const noexcept { return first_rows_ + static_cast<std::uint32_t>(rows_parts_); }

 private:
  std::vector<std::uint32_t> of_chunk_;  ///< ~0: has no dense gradient
  std::uint32_t first_rows_ = 0;
  std::size_t rows_parts_ = 0;
};

/// What the books of a run are of. Follows from the model alone, so that another placement finds what was written.
[[nodiscard]] journal::JournalSpec journal_spec(const plan::Description& description, const state::Layout& layout,
                                                plan::Durability durability, const std::string& run, std::size_t paths);

/// Thread safe once it is open. An error that ended the journal is thrown by every call that needs it.
class Books : private journal::JournalListener {
 public:
  /// Which of three beginnings (journal::Journal).
  struct Opening {
    const journal::Recovered* before = nullptr;
    const journal::Manifest* back = nullptr;  ///< go back to it
    bool resume = false;                      ///< go on from `before`
    std::span<const journal::Manifest> pinned;
  };

  /// The paths outlive it. When fewer bytes than `low_water` are free, places are won back without waiting for a
  /// commit.
  Books(journal::JournalSpec spec, std::vector<storage::Path*> paths, Bytes low_water);
  ~Books() override;
  Books(const Books&) = delete;
  Books& operator=(const Books&) = delete;

  [[nodiscard]] journal::Media& media() noexcept { return media_; }
  [[nodiscard]] const journal::JournalSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] bool keeps_gradients() const noexcept { return spec_.durability == journal::Durability::step; }
  /// What the pool is to be made with; then attach it.
  [[nodiscard]] storage::PoolOptions pool_options();
  void attach(storage::Pool& pool) noexcept { pool_ = &pool; }
  /// Pins, opens, and waits until nothing written before can come back.
  void open(const Opening& opening);

  /// A piece as it was written just now.
  [[nodiscard]] journal::Piece piece(storage::Place place, Bytes bytes, std::uint32_t part) const;

  void snapshot_written(std::size_t chunk, std::uint64_t version, std::span<const journal::Piece> pieces);
  void gradient_written(std::uint32_t gradient, std::uint64_t version, std::span<const journal::Piece> pieces);
  void commit(const journal::CommitRequest& request);
  /// Waits until the step is durable.
  void wait_durable(std::uint64_t step);
  /// Pinned. Snapshots of the last committed step must have been written, of every chunk.
  [[nodiscard]] journal::Manifest checkpoint();
  void unpin(const journal::Manifest& manifest);
  /// What the next commit needs could not be written.
  void give_up(std::exception_ptr error);
  /// Asks nothing of the paths and tells nothing to the pool from now on.
  void stop();
  [[nodiscard]] std::uint64_t identity() const noexcept { return journal_.layout().identity(); }

 private:
  void opened() override;
  void durable(std::uint64_t step) override;
  void released(std::span<const journal::Piece> pieces) override;
  void path_failed(std::uint32_t path, std::exception_ptr error) override;
  void failed(std::exception_ptr error) override;
  template <class Ready>
  void wait(const Ready& ready);

  const journal::JournalSpec spec_;
  const Bytes low_water_;
  std::vector<storage::Path*> paths_;
  storage::Pool* pool_ = nullptr;
  journal::PathMedia media_;

  std::mutex mutex_;  ///< guards what follows up to the journal
  std::condition_variable changed_;
  bool opened_ = false;
  std::optional<std::uint64_t> durable_;
  std::exception_ptr failure_;
  std::vector<storage::Place> places_;  ///< of one release; only its one caller uses it

  journal::Journal journal_;  ///< last: calls the above until it is gone
};

/// A piece as it was written just now on one of these paths.
[[nodiscard]] journal::Piece piece_of(std::span<storage::Path* const> paths, storage::Place place, Bytes bytes,
                                      std::uint32_t part);

/// What a read of this piece will be verified against.
void expect(storage::Path& path, const journal::Piece& piece);

}  // namespace spillway::execute
