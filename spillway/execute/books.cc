#include "spillway/execute/books.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/optim/step.h"
#include "spillway/plan/schedule.h"
#include "spillway/plan/storage_need.h"

namespace spillway::execute {
namespace {

constexpr std::uint32_t kNoGradient = std::numeric_limits<std::uint32_t>::max();

std::uint32_t pieces_of(Bytes bytes) {
  return static_cast<std::uint32_t>(ceil_div(bytes, storage::kExtentAlignment));
}

Bytes rows_of(const plan::Description& description, const state::Block& table, std::uint64_t rows) {
  return plan::rows_bytes(rows, table.columns, state::field_bytes(description.type).grad);
}

}  // namespace

const state::Block* table_of(const state::Layout& layout) {
  const auto& blocks = layout.blocks();
  const auto at = std::ranges::find(blocks, state::BlockRole::embedding, &state::Block::role);
  return at == blocks.end() ? nullptr : &*at;
}

GradientIds::GradientIds(const plan::Description& description, const state::Layout& layout) {
  for (plan::Index c = 0; c < layout.chunks().size(); ++c) {
    of_chunk_.push_back(plan::has_dense_grad(description, layout, c) ? first_rows_++ : kNoGradient);
  }
  if (const auto* table = table_of(layout); table != nullptr && table->learning_chunks > 0) {
    rows_parts_ = ceil_div(rows_of(description, *table, std::min(table->rows, description.tokens)), plan::kRowsPart);
  }
}

journal::JournalSpec journal_spec(const plan::Description& description, const state::Layout& layout,
                                  plan::Durability durability, const std::string& run, std::size_t paths) {
  const auto rule = description.rule();
  journal::JournalSpec out;
  out.run = run;
  out.paths = static_cast<std::uint32_t>(paths);
  out.update = optim::extension_bytes(*description.optimizer);
  out.durability = durability == plan::Durability::step ? journal::Durability::step : journal::Durability::checkpoint;
  for (plan::Index c = 0; c < layout.chunks().size(); ++c) {
    const auto& chunk = layout.chunks()[c];
    out.chunks.push_back({.pieces = pieces_of(weight_bytes(rule, chunk)) + pieces_of(state_bytes(rule, chunk)),
                          .period = plan::kImagePeriod,
                          .constant = !learns(chunk.learning)});
    if (!plan::has_dense_grad(description, layout, c)) continue;
    out.gradients.push_back({.pieces = pieces_of(grad_bytes(rule, chunk)), .first_chunk = c, .chunks = 1});
  }
  const auto* table = table_of(layout);
  if (table == nullptr || table->learning_chunks == 0) return out;
  // As many as the whole table would need: the tokens of a step are another run's business.
  const auto parts = ceil_div(rows_of(description, *table, table->rows), plan::kRowsPart);
  for (Bytes part = 0; part < parts; ++part) {
    out.gradients.push_back({.pieces = pieces_of(plan::kRowsPart),
                             .first_chunk = static_cast<std::uint32_t>(table->first_chunk),
                             .chunks = static_cast<std::uint32_t>(table->chunks)});
  }
  return out;
}

Books::Books(journal::JournalSpec spec, std::vector<storage::Path*> paths, Bytes low_water)
    : spec_(std::move(spec)),
      low_water_(low_water),
      paths_(std::move(paths)),
      media_(paths_),
      journal_(spec_, media_, *this) {}

Books::~Books() {
  stop();
}

storage::PoolOptions Books::pool_options() {
  storage::PoolOptions out;
  out.on_scarce = [this] { journal_.hurry(); };
  out.on_outage = [this](const storage::Outage& outage) {
    journal_.path_failed(outage.path, std::make_exception_ptr(Error(ErrorCode::io, outage.reason)));
  };
  return out;
}

void Books::open(const Opening& opening) {
  for (const auto& manifest : opening.pinned) journal_.pin(manifest);
  if (opening.back != nullptr) {
    journal_.open_at(*opening.back, *opening.before);
  } else if (opening.resume) {
    journal_.open_resumed(*opening.before);
  } else {
    journal_.open_fresh(*opening.before);
  }
  wait([this] { return opened_; });
}

template <class Ready>
void Books::wait(const Ready& ready) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || ready(); });
  if (failure_) std::rethrow_exception(failure_);
}

journal::Piece Books::piece(storage::Place place, Bytes bytes, std::uint32_t part) const {
  return piece_of(paths_, place, bytes, part);
}

journal::Piece piece_of(std::span<storage::Path* const> paths, storage::Place place, Bytes bytes, std::uint32_t part) {
  const auto mark = paths[place.path]->mark(place.piece * storage::kExtentAlignment);
  if (mark.bytes != bytes) {
    throw Error(ErrorCode::internal, text("piece ", place.piece, " of path:", place.path, " was written with ",
                                          mark.bytes, " bytes instead of ", bytes));
  }
  return {.place = place, .bytes = mark.bytes, .part = part, .checksum = mark.checksum};
}

void Books::snapshot_written(std::size_t chunk, std::uint64_t version, std::span<const journal::Piece> pieces) {
  journal_.snapshot_written(static_cast<std::uint32_t>(chunk), version, pieces);
  if (keeps_gradients() && pool_->free() < low_water_) journal_.hurry();
}

void Books::gradient_written(std::uint32_t gradient, std::uint64_t version, std::span<const journal::Piece> pieces) {
  journal_.gradient_written(gradient, version, pieces);
}

void Books::commit(const journal::CommitRequest& request) {
  journal_.commit(request);
}

void Books::wait_durable(std::uint64_t step) {
  wait([&] { return durable_ && *durable_ >= step; });
}

journal::Manifest Books::checkpoint() {
  struct Answer {  // under mutex_
    journal::Manifest manifest;
    std::exception_ptr error;
    bool is_there = false;
  };
  const auto answer = std::make_shared<Answer>();  // may come when nobody waits for it any more
  journal_.checkpoint([this, answer](const journal::Manifest& manifest, std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    answer->manifest = manifest;
    answer->error = std::move(failure);
    answer->is_there = true;
    changed_.notify_all();
  });
  wait([&] { return answer->is_there; });
  if (answer->error) std::rethrow_exception(answer->error);
  return std::move(answer->manifest);
}

void Books::unpin(const journal::Manifest& manifest) {
  journal_.unpin(manifest);
}

void Books::give_up(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(error);
  changed_.notify_all();
}

void Books::stop() {
  journal_.stop();
}

void Books::opened() {
  const std::lock_guard lock(mutex_);
  opened_ = true;
  changed_.notify_all();
}

void Books::durable(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  durable_ = step;
  changed_.notify_all();
}

void Books::released(std::span<const journal::Piece> pieces) {
  places_.clear();
  for (const auto& piece : pieces) places_.push_back(piece.place);
  pool_->release(places_);
  // A release ends the hurry, but may not be all that waits.
  if (pool_->waiting() > 0) journal_.hurry();
}

void Books::path_failed(std::uint32_t path, std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    pool_->retire(path, reason.errno_value(), reason.what());
  } catch (const std::exception& reason) {
    pool_->retire(path, 0, reason.what());
  }
}

void Books::failed(std::exception_ptr error) {
  give_up(error);
  pool_->close(std::move(error));  // nothing will be released any more
}

void expect(storage::Path& path, const journal::Piece& piece) {
  path.expect(piece.place.piece * storage::kExtentAlignment, {.checksum = piece.checksum, .bytes = piece.bytes});
}

}  // namespace spillway::execute
