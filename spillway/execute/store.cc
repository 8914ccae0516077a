#include "spillway/execute/store.h"

#include <algorithm>

#include "spillway/base/error.h"

namespace spillway::execute {

using plan::ObjectKind;

namespace {

std::size_t object_pieces(Bytes bytes) {
  return ceil_div(bytes, storage::kExtentAlignment);
}

}  // namespace

std::string name_of(const state::Layout& layout, ObjectKind kind, std::size_t chunk) {
  const auto& block = layout.blocks()[layout.chunks()[chunk].block];
  const auto& spans = layout.spans(chunk);
  const auto tensors = spans.empty()       ? block.name
                       : spans.size() == 1 ? layout.tensors()[spans.front().tensor].spec.name
                                           : text(layout.tensors()[spans.front().tensor].spec.name, " to ",
                                                  layout.tensors()[spans.back().tensor].spec.name);
  return text(traits(kind).words, " of ", tensors, " (chunk ", chunk, ")");
}

Store::Store(const plan::Plan& plan, const plan::Description& description, const state::Layout& layout,
             storage::Pool& pool, journal::RunJournal* journal)
    : pool_(pool),
      journal_(journal),
      gradients_(description, layout),
      redo_(journal != nullptr && journal->keeps_gradients()) {
  const auto rule = description.rule();
  for (const auto kind : {ObjectKind::weight, ObjectKind::state, ObjectKind::gradient}) {
    objects_[static_cast<std::size_t>(kind)].resize(layout.chunks().size());
  }
  snapshots_.resize(layout.chunks().size());
  for (std::size_t c = 0; c < layout.chunks().size(); ++c) {
    const auto& chunk = layout.chunks()[c];
    const auto add_field = [&](ObjectKind kind, Bytes size) { add(kind, c, size, name_of(layout, kind, c)); };
    snapshots_[c].constant = !is_trainable(chunk.training);
    if (!description.has(layout, chunk)) continue;  // another process has it
    add_field(ObjectKind::weight, weight_bytes(rule, chunk));
    add_field(ObjectKind::state, state_bytes(rule, chunk));
    if ((redo_ || !plan.placement[c].gradient.in_memory()) &&
        plan::has_dense_grad(description, layout, static_cast<plan::Index>(c))) {
      add_field(ObjectKind::gradient, grad_bytes(rule, chunk));
    }
  }
  const auto add_numbered = [&](const plan::Object& what, Bytes size) {
    const auto& kind = traits(what.kind);
    const auto number = kind.numbered == plan::Numbered::alone ? std::string() : text(" ", what.index);
    add(what.kind, what.index, size, kind.words + number);
  };
  for (const auto& task : plan.schedule.tasks) {
    const auto& kind = traits(task.what.kind);
    const bool sparse = kind.of_gradient && kind.numbered == plan::Numbered::by_number;
    if (sparse) add_numbered(task.what, task.bytes);
  }
  for (const auto& it : plan.schedule.activations) add_numbered(it.what, it.bytes);
  for (std::size_t kind = 0; kind < objects_.size(); ++kind) {
    if (!plan::kObjects[kind].of_gradient) continue;
    for (const auto& it : objects_[kind]) gradient_places_ += it.places.size();
  }
}

void Store::add(ObjectKind kind, std::size_t subject, Bytes bytes, std::string name) {
  auto& objects = objects_[static_cast<std::size_t>(kind)];
  if (objects.size() <= subject) objects.resize(subject + 1);
  auto& object = objects[subject];
  object.store = this;
  object.kind = kind;
  object.subject = subject;
  object.places.resize(object_pieces(bytes));
  object.name = std::move(name);
}

Store::Object& Store::object(ObjectKind kind, std::size_t subject) {
  return objects_[static_cast<std::size_t>(kind)].at(subject);
}

const Store::Object& Store::object(ObjectKind kind, std::size_t subject) const {
  return objects_[static_cast<std::size_t>(kind)].at(subject);
}

storage::Pool::Request Store::request(const Transfer& transfer) {
  auto& it = object(transfer.kind, transfer.subject);
  if (it.places.size() != object_pieces(transfer.bytes)) {
    throw Error(ErrorCode::internal,
                text(transfer.bytes, " bytes of ", it.name, ", which has ", it.places.size(), " pieces"));
  }
  storage::Pool::Request out{.direction = transfer.direction,
                             .memory = transfer.memory,
                             .bytes = transfer.bytes,
                             .places = it.places,
                             .deadline = transfer.deadline,
                             .done = transfer.done,
                             .context = transfer.context,
                             .token = transfer.token,
                             .what = it.name,
                             .last_path = transfer.last_path};
  if (transfer.direction == storage::Direction::read) {
    if (!it.written) throw Error(ErrorCode::internal, text(it.name, " is read before it was written"));
    return out;
  }
  begin_write(it, transfer);
  out.done = &Store::ended;
  out.context = &it;
  if (transfer.snapshot && journal_ != nullptr) pair(it, out);
  if (redo_ && traits(it.kind).of_gradient) out.group = &gradients_of(transfer.version);
  return out;
}

/// Only a snapshot that is whole makes the one before it superfluous. Were first parts to take all places that are
/// free, no second one could ever be written, and nothing be released.
void Store::pair(const Object& it, storage::Pool::Request& request) {
  const auto part = traits(it.kind).other_part;
  if (!part) return;
  const auto& other = object(*part, it.subject);
  if (other.places.empty()) return;
  request.pair = &snapshots_[it.subject].pair;
  request.more = static_cast<std::uint32_t>(other.places.size());
}

void Store::drop(Object& it) {
  if (it.written && !it.owned) pool_.release(it.places);
  it.written = false;
}

void Store::begin_write(Object& it, const Transfer& transfer) {
  drop(it);
  it.written = true;
  it.owned = false;
  it.write = transfer;
}

void Store::start(const Transfer& transfer) {
  pool_.start(request(transfer));
}

void Store::run(const Transfer& transfer) {
  storage::Waiter waiter;
  auto waited = transfer;
  waited.done = &storage::Waiter::done;
  waited.context = &waiter;
  start(waited);
  wait(waiter);
  waiter.wait();
}

void Store::wait(storage::Waiter& waiter) {
  for (int looks = 0; !waiter.wait_for(kStallCheck);) {
    looks = stalled() > 0 ? looks + 1 : 0;
    if (looks == kStalledLooks) refuse_waiting();
  }
}

void Store::write(ObjectKind kind, std::size_t chunk, std::span<const std::byte> memory, std::uint64_t version) {
  run({.direction = storage::Direction::write,
       .kind = kind,
       .subject = chunk,
       .memory = const_cast<std::byte*>(memory.data()),  // a write only reads it
       .bytes = memory.size(),
       .version = version});
}

void Store::expect_gradients(std::uint64_t version) {
  if (redo_) pool_.expect(gradients_of(version), gradient_places_);
}

void Store::reserve_gradients(std::uint64_t version) {
  if (redo_) pool_.reserve(gradients_of(version));
}

std::size_t Store::stalled() const {
  return journal_ == nullptr || journal_->quiet() ? pool_.stalled() : 0;
}

void Store::give_up(const std::exception_ptr& error) {
  if (journal_ != nullptr) journal_->give_up(error);
}

void Store::ended(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
  auto& it = *static_cast<Object*>(context);
  auto failure = error;
  if (!failure && it.store->journal_ != nullptr) {
    try {
      it.store->note(it);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure && it.store->journal_ != nullptr) it.store->journal_->give_up(failure);
  it.write.done(it.write.context, it.write.token, failure);
}

/// A write has ended: the journal is told when that makes something whole.
void Store::note(Object& it) {
  if (traits(it.kind).of_gradient) {
    if (!redo_) return;
    thread_local std::vector<journal::Piece> pieces;
    pieces.clear();
    append(it, 0, journal_->paths(), pieces);
    it.owned = true;
    const bool dense = traits(it.kind).numbered == plan::Numbered::by_chunk;
    const auto id = dense ? gradients_.find_chunk(it.subject) : gradients_.find_sparse(it.subject);
    return journal_->gradient_written(id, it.write.version, pieces);
  }
  if (!it.write.snapshot || !traits(it.kind).other_part) return;
  auto& snapshot = snapshots_[it.subject];
  {
    const std::lock_guard lock(mutex_);
    if (snapshot.version != it.write.version) snapshot.parts = 0;
    snapshot.version = it.write.version;
    if (++snapshot.parts < 2) return;
  }
  tell_snapshot(it.subject, it.write.version);
}

void Store::append(const Object& it, std::uint32_t part, std::span<storage::Path* const> paths,
                   std::vector<journal::Piece>& pieces) {
  auto left = it.write.bytes;
  for (const auto place : it.places) {
    const auto bytes = std::min(left, storage::kExtentAlignment);
    pieces.push_back(journal::piece_of(paths, place, bytes, part));
    left -= bytes;
  }
}

void Store::tell_snapshot(std::size_t chunk, std::uint64_t version) {
  auto& snapshot = snapshots_[chunk];
  auto& weight = object(ObjectKind::weight, chunk);
  auto& state = object(ObjectKind::state, chunk);
  snapshot.pieces.clear();
  append(weight, journal::kWeightPart, journal_->paths(), snapshot.pieces);
  append(state, journal::kStatePart, journal_->paths(), snapshot.pieces);
  weight.owned = state.owned = true;
  snapshot.told = version;
  snapshot.any = true;
  journal_->snapshot_written(chunk, version, snapshot.pieces);
}

bool Store::published(std::size_t chunk, std::uint64_t version) const {
  const auto& snapshot = snapshots_[chunk];
  return snapshot.any && (snapshot.constant || snapshot.told >= version);
}

void Store::publish(std::size_t chunk, std::uint64_t version) {
  if (!published(chunk, version)) tell_snapshot(chunk, version);
}

void Store::adopt(const journal::StoredObject& stored) {
  const auto take = [&](ObjectKind kind, std::uint32_t part) {
    auto& it = object(kind, stored.object);
    it.write.bytes = 0;
    std::size_t next = 0;
    for (const auto& piece : stored.pieces) {
      if (piece.part != part || next == it.places.size()) continue;
      it.places[next++] = piece.place;
      it.write.bytes += piece.bytes;
    }
    if (next != it.places.size()) {
      throw Error(ErrorCode::corrupt,
                  text("the record of ", it.name, " names ", next, " pieces instead of ", it.places.size()));
    }
    it.written = it.owned = true;
  };
  take(ObjectKind::weight, journal::kWeightPart);
  take(ObjectKind::state, journal::kStatePart);
  snapshots_[stored.object].told = stored.version;
  snapshots_[stored.object].any = true;
}

void Store::drop_transient() {
  for (std::size_t kind = 0; kind < objects_.size(); ++kind) {
    if (plan::kObjects[kind].other_part) continue;
    for (auto& it : objects_[kind]) drop(it);
  }
}

void Store::forget(ObjectKind kind, std::size_t subject) {
  if (journal_ == nullptr) drop(object(kind, subject));
}

bool Store::written(ObjectKind kind, std::size_t chunk) const {
  return object(kind, chunk).written;
}

Bytes Store::place_bytes(ObjectKind kind, std::size_t chunk) const {
  return object(kind, chunk).places.size() * storage::kExtentAlignment;
}

journal::StoredObject Store::stored(std::size_t chunk, std::uint64_t version,
                                    std::span<storage::Path* const> paths) const {
  journal::StoredObject out{.object = static_cast<std::uint32_t>(chunk), .version = version, .pieces = {}};
  append(object(ObjectKind::weight, chunk), journal::kWeightPart, paths, out.pieces);
  append(object(ObjectKind::state, chunk), journal::kStatePart, paths, out.pieces);
  return out;
}

}  // namespace spillway::execute
