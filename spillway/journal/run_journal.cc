#include "spillway/journal/run_journal.h"

#include <chrono>
#include <memory>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/base/interrupt.h"

namespace spillway::journal {

namespace {

constexpr std::chrono::milliseconds kAskEvery{100};

}  // namespace

RunJournal::RunJournal(JournalSpec spec, std::vector<storage::Path*> paths, Bytes low_water, VotePort* votes)
    : spec_(std::move(spec)),
      low_water_(low_water),
      paths_(std::move(paths)),
      media_(paths_),
      journal_(spec_, media_, *this, votes) {}

RunJournal::~RunJournal() {
  stop();
}

storage::PoolOptions RunJournal::pool_options() {
  storage::PoolOptions out;
  out.on_scarce = [this] { journal_.hurry(); };
  out.on_outage = [this](const storage::Outage& outage) {
    journal_.path_failed(outage.path, std::make_exception_ptr(Error(ErrorCode::io, outage.reason)));
  };
  return out;
}

void RunJournal::open(const Start& start) {
  for (const auto& manifest : start.pinned) journal_.pin(manifest);
  if (start.back != nullptr) {
    journal_.open_at(*start.back, *start.before);
  } else if (start.resume) {
    journal_.open_resumed(*start.before);
  } else {
    journal_.open_fresh(*start.before);
  }
  wait_opened();
}

/// The other shards may be a long time in coming, or never come.
void RunJournal::wait_opened() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      throw_if_failed();
      if (opened_) return;
      changed_.wait_for(lock, kAskEvery);
    }
    throw_if_interrupted();
  }
}

void RunJournal::throw_if_failed() const {
  if (failure_) std::rethrow_exception(failure_);
}

void RunJournal::wait(MutexLock& lock) {
  changed_.wait(lock);
  throw_if_failed();
}

Piece piece_of(std::span<storage::Path* const> paths, storage::Place place, Bytes bytes, std::uint32_t part) {
  const auto mark = paths[place.path]->mark(place.piece * storage::kExtentAlignment);
  if (mark.bytes != bytes) {
    throw Error(ErrorCode::internal, text("piece ", place.piece, " of path:", place.path, " was written with ",
                                          mark.bytes, " bytes instead of ", bytes));
  }
  return {.place = place, .bytes = mark.bytes, .part = part, .checksum = mark.checksum};
}

void RunJournal::snapshot_written(std::size_t chunk, std::uint64_t version, std::span<const Piece> pieces) {
  journal_.snapshot_written(static_cast<std::uint32_t>(chunk), version, pieces);
  if (keeps_gradients() && is_short_of_places(pieces.size())) journal_.hurry();
}

/// A full path leaves its share of the writes to the other paths, and later reads wait for those. A path full of needed
/// versions gains nothing from a flush: another one for its sake waits until `low_water_` bytes have been written.
bool RunJournal::is_short_of_places(std::size_t written_pieces) {
  const auto count = static_cast<std::uint32_t>(written_pieces);
  const Bytes written = pieces_since_hurry_.fetch_add(count, std::memory_order_relaxed) + count;
  const bool one_is_short = written * storage::kExtentAlignment >= low_water_ && pool_->free_in_shares() < low_water_;
  if (!one_is_short && pool_->free() >= low_water_) return false;
  pieces_since_hurry_.store(0, std::memory_order_relaxed);
  return true;
}

void RunJournal::gradient_written(std::uint32_t gradient, std::uint64_t version, std::span<const Piece> pieces) {
  journal_.gradient_written(gradient, version, pieces);
}

void RunJournal::commit(const CommitRequest& request) {
  journal_.commit(request);
}

void RunJournal::wait_durable(std::uint64_t step) {
  MutexLock lock(mutex_);
  throw_if_failed();
  while (!durable_ || *durable_ < step) wait(lock);
}

Manifest RunJournal::checkpoint() {
  struct Answer {  // under mutex_
    Manifest manifest;
    std::exception_ptr error;
    bool is_there = false;
  };
  const auto answer = std::make_shared<Answer>();  // may come when nobody waits for it any more
  journal_.checkpoint([this, answer](const Manifest& manifest, std::exception_ptr failure) {
    const MutexLock lock(mutex_);
    answer->manifest = manifest;
    answer->error = std::move(failure);
    answer->is_there = true;
    changed_.notify_all();
  });
  MutexLock lock(mutex_);
  throw_if_failed();
  while (!answer->is_there) wait(lock);
  if (answer->error) std::rethrow_exception(answer->error);
  return std::move(answer->manifest);
}

void RunJournal::unpin(const Manifest& manifest) {
  journal_.unpin(manifest);
}

void RunJournal::give_up(std::exception_ptr error) {
  const MutexLock lock(mutex_);
  if (!failure_) failure_ = std::move(error);
  changed_.notify_all();
}

void RunJournal::stop() {
  journal_.stop();
}

void RunJournal::opened() {
  const MutexLock lock(mutex_);
  opened_ = true;
  changed_.notify_all();
}

void RunJournal::durable(std::uint64_t step) {
  const MutexLock lock(mutex_);
  durable_ = step;
  changed_.notify_all();
}

void RunJournal::released(std::span<const Piece> pieces) {
  places_.clear();
  for (const auto& piece : pieces) places_.push_back(piece.place);
  pool_->release(places_);
  // A release ends the hurry, but may not be all that waits.
  if (pool_->waiting() > 0) journal_.hurry();
}

void RunJournal::path_failed(std::uint32_t path, std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    pool_->retire(path, reason.errno_value(), reason.what());
  } catch (const std::exception& reason) {
    pool_->retire(path, 0, reason.what());
  }
}

void RunJournal::failed(std::exception_ptr error) {
  give_up(error);
  pool_->close(std::move(error));  // nothing will be released any more
}

void expect(storage::Path& path, const Piece& piece) {
  path.expect(piece.place.piece * storage::kExtentAlignment, {.checksum = piece.checksum, .bytes = piece.bytes});
}

}  // namespace spillway::journal
